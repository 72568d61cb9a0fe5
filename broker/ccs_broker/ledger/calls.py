"""Every script call as a plain record, and the meaning of every reply; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ccs_broker import topology
from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.ledger.records import (
    Append,
    AttemptState,
    Claim,
    ClaimWish,
    Ending,
    Entry,
    NoClaim,
    NotClaimed,
    Published,
    PublishStatus,
    SweepReport,
)
from ccs_broker.scripts import Script, script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.settings import LedgerSettings

Argument = str | int | bytes
#: Keys of a job live from birth, should every worker be gone: a day longer than the longest lifetime.
_BIRTH_TTL_S = int(MAX_LIFETIME_S) + 24 * 3600
#: A sweep that comes later than this many intervals after the last one, of whatever worker, follows an outage.
_LATE_SWEEP = 1.5


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys and arguments."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]

    def evalsha(self) -> tuple[Argument, ...]:
        """The whole EVALSHA command."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


def text(value: object) -> str:
    """A reply's string, whether it came as bytes or decoded."""
    return value.decode() if isinstance(value, bytes) else str(value)


def raw(value: object) -> bytes:
    """A reply's bytes, whether they came as bytes or decoded."""
    return value if isinstance(value, bytes) else str(value).encode()


class LedgerCalls:
    """Builds calls under one set of settings and reads their replies."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        self._ttl: tuple[int, int, int] = (settings.job_ttl_s, settings.log_ttl_s, settings.blob_grace_s)

    def publish(self, entry: Entry) -> Call:
        """Store a job or task and push its ticket."""
        args: tuple[Argument, ...] = (
            entry.id, entry.queue, entry.kind, entry.message, entry.payload,
            entry.urgency.rank, entry.urgency.slack_us, entry.delay_ms, entry.expire_ms, _BIRTH_TTL_S,
            entry.model, entry.modality, " ".join(entry.blobs), "1" if entry.celery else "",
            entry.idempotency, entry.digest, entry.source, entry.raw, topology.TICKET,
        )  # fmt: skip
        return Call(script("publish"), (topology.JOB + entry.id, topology.LOG + entry.id), args)

    @staticmethod
    def read_publish(reply: object) -> Published:
        """Status and id."""
        status, job_id = cast("Sequence[object]", reply)
        return Published(PublishStatus(text(status)), text(job_id))

    def claim(self, wish: ClaimWish) -> Call:
        """Turn a popped ticket into the best eligible job."""
        models = f" {' '.join(wish.models)} " if wish.models else ""
        args: tuple[Argument, ...] = (
            wish.popped, wish.worker, int(self._settings.lease_s * 1000), self._settings.claim_candidates,
            topology.TICKET, *self._ttl, models, *wish.queues,
        )  # fmt: skip
        return Call(script("claim"), (topology.RUNNING,), args)

    @staticmethod
    def read_claim(reply: object) -> Claim | NotClaimed:
        """The claim, or why there is none."""
        parts = cast("Sequence[object]", reply)
        if len(parts) == 1:
            return NotClaimed(NoClaim(text(parts[0])))
        job_id, attempt, queue, message, payload, seq, submitted, expire, links = parts
        return Claim(
            id=text(job_id),
            attempt=int(text(attempt)),
            queue=text(queue),
            message=raw(message),
            payload=raw(payload),
            seq=int(text(seq)),
            submitted_ms=int(text(submitted)),
            expire_ms=int(text(expire)),
            links=text(links) == "1",
        )

    @staticmethod
    def append(
        job_id: str, attempt: int, events: Sequence[Append], *, after: int, first_output: bool
    ) -> Call:
        """Append events of a running attempt behind event number ``after``; safe to repeat."""
        args: list[Argument] = [job_id, attempt, "1" if first_output else "", after]
        for event in events:
            args += (event.kind.value, event.text, event.data, ",".join(map(str, event.token_ids)))
        return Call(script("append"), (topology.JOB + job_id, topology.LOG + job_id), tuple(args))

    @staticmethod
    def read_append(reply: object) -> tuple[AttemptState, int]:
        """What the attempt must know, and the number of its last event."""
        state, seq = cast("Sequence[object]", reply)
        return cast("AttemptState", text(state)), int(text(seq))

    def finish(self, job_id: str, attempt: int, ending: Ending) -> Call:
        """Write the outcome; refused if the attempt no longer holds the job."""
        args = (
            job_id,
            attempt,
            ending.state.value,
            ending.outcome,
            ending.event_data,
            ending.celery,
            *self._ttl,
            "1" if ending.links else "",
        )
        return Call(script("finish"), (topology.JOB + job_id, topology.RUNNING), args)

    def ack(self, job_id: str, attempt: int) -> Call:
        """Celery is done with a delivery."""
        return Call(script("ack"), (topology.JOB + job_id, topology.RUNNING), (job_id, attempt, *self._ttl))

    @staticmethod
    def release(job_id: str, attempt: int, event_data: str = "") -> Call:
        """Hand a claim back; with data, a `preempted` event says so to whoever reads the stream."""
        args = (job_id, attempt, topology.TICKET, event_data)
        return Call(script("release"), (topology.JOB + job_id, topology.RUNNING), args)

    @staticmethod
    def crash(job_id: str, attempt: int, outputs: int, *, alone: bool) -> Call:
        """Count an engine's death under an attempt."""
        return Call(script("crash"), (topology.JOB + job_id,), (attempt, outputs, "1" if alone else ""))

    def renew(self, entries: Sequence[tuple[str, int]]) -> Call:
        """Prolong leases."""
        names = [topology.run_entry(job_id, attempt) for job_id, attempt in entries]
        return Call(script("renew"), (topology.RUNNING,), (int(self._settings.lease_s * 1000), *names))

    @staticmethod
    def read_renew(reply: object) -> list[AttemptState]:
        """One state per entry, in order."""
        return [cast("AttemptState", text(state)) for state in cast("Sequence[object]", reply)]

    @staticmethod
    def report(worker: str, report: str, ttl_s: float, served: Sequence[tuple[str, str]]) -> Call:
        """A worker tells that it lives, what it is, and which models (modality, alias) it serves."""
        flat = [part for pair in served for part in pair]
        return Call(script("report"), (topology.WORKERS,), (worker, report, int(ttl_s * 1000), *flat))

    @staticmethod
    def retire(worker: str) -> Call:
        """A worker tells that it goes."""
        return Call(script("report"), (topology.WORKERS,), (worker, "", 0))

    def cancel(self, job_id: str) -> Call:
        """End a waiting job, flag a running one."""
        return Call(script("cancel"), (topology.JOB + job_id,), (job_id, topology.TICKET, *self._ttl))

    def sweep(self, queues: Sequence[str] = topology.QUEUES) -> Call:
        """What time brings about."""
        args: tuple[Argument, ...] = (
            self._settings.sweep_limit, topology.TICKET, *self._ttl, self._settings.most_losses,
            int(_LATE_SWEEP * self._settings.sweep_s * 1000), int(self._settings.lease_s * 1000), *queues,
        )  # fmt: skip
        return Call(script("sweep"), (topology.RUNNING, topology.EXPIRY, topology.SWEPT), args)

    @staticmethod
    def read_sweep(reply: object) -> SweepReport:
        """Counts of one sweep."""
        requeued, lost, promoted, expired, tickets = (int(text(n)) for n in cast("Sequence[object]", reply))
        return SweepReport(requeued=requeued, lost=lost, promoted=promoted, expired=expired, tickets=tickets)

    def dead(self, letter: str, *, source: str = "", raw_message: bytes = b"") -> Call:
        """Put what can't be understood among the dead letters."""
        args = (raw_message, letter, self._settings.dead_letters, _BIRTH_TTL_S)
        return Call(script("dead"), (source or topology.DEAD, topology.DEAD), args)

    def purge(self, job_id: str) -> Call:
        """Drop the payload and the media of a quarantined job; the reply is 1, or 0 if there was nothing."""
        keys = (topology.JOB + job_id, topology.QUARANTINED)
        return Call(script("purge"), keys, (job_id, self._settings.blob_grace_s))

    @staticmethod
    def replayed(job_id: str, new_id: str) -> Call:
        """Note which job runs a quarantined one's payload again."""
        return Call(script("replayed"), (topology.JOB + job_id,), (new_id,))
