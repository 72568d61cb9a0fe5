"""Every script call as a plain record, and the meaning of every reply; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ccs_broker import topology
from ccs_broker.ledger.publishing import BIRTH_TTL_S, Argument, begin_args, publish_args
from ccs_broker.ledger.records import (
    Append,
    AttemptState,
    Beginning,
    Blocked,
    CancelReach,
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
from ccs_broker.scripts import STOCK, Script, Scripts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_broker.ledger.records import Room
    from ccs_broker.priority import Urgency
    from ccs_broker.settings import LedgerSettings

#: A sweep that comes later than this many intervals after the last one, of whatever worker, follows an outage.
_LATE_SWEEP = 1.5
#: Intervals between sweeps for which a ticket must be missing at each of them to count as lost.
_MISSING_SWEEPS = 0.5
#: Seconds for which what was learnt about a kind of job stays, should none of it come.
_LEARNT_TTL_S = 30 * 24 * 3600
#: Longest reply of a claim that gave no job: why, and four facts about the best job that lacked memory.
_NOT_CLAIMED_PARTS: Final = 5
#: Policies of a step with which its pipeline goes on without it.
_GOES_ON: Final = frozenset({"skip", "default"})
_FIRST_FIELDS: Final = ("f0", "f1", "f2", "f3", "f4")
_COST_FIELDS: Final = ("c0", "c1", "c2", "c3", "c4")
#: Tenants that may have a weight of their own.
MOST_WEIGHTS: Final = 10_000


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


def _blocked(parts: Sequence[object]) -> Blocked | None:
    if not parts:
        return None
    job_id, rank, score, need = map(text, parts)
    return Blocked(id=job_id, rank=int(rank), score=int(score), need_bytes=int(need))


def _needs(room: Room) -> dict[str, str]:
    """What jobs need, by queue, as the claim script reads it."""
    needs: dict[str, str] = {}
    for (queue, model), need in room.need.items():
        told = "-" if need is None else " ".join(map(repr, (need.pool + 1, *need.coefficients)))
        needs[queue] = f"{needs.get(queue, '')};{model}={told}"
    return needs


class LedgerCalls:
    """Builds calls under one set of settings and reads their replies."""

    def __init__(self, settings: LedgerSettings, scripts: Scripts = STOCK) -> None:
        self._settings = settings
        self._script = scripts.get
        #: The fleet's scheduling policy.
        self.policy = settings.scheduling
        self._ttl: tuple[int, int, int] = (settings.job_ttl_s, settings.log_ttl_s, settings.blob_grace_s)

    def publish(self, entry: Entry) -> Call:
        """Store a job or task and push its ticket."""
        args = publish_args(entry, self.policy, self._ttl, self._settings.queue_limit)
        keys = (topology.JOB + entry.id, topology.LOG + entry.id, topology.TOMBSTONES)
        return Call(self._script("publish"), keys, args)

    def begin(self, beginning: Beginning) -> Call:
        """Write a pipeline's record, before its first step is published; the reply reads like that of ``publish``."""
        keys = (topology.JOB + beginning.id, topology.LOG + beginning.id)
        return Call(self._script("begin"), keys, begin_args(beginning))

    @staticmethod
    def read_publish(reply: object) -> Published:
        """Status and id."""
        status, job_id = cast("Sequence[object]", reply)
        return Published(PublishStatus(text(status)), text(job_id))

    def claim(self, wish: ClaimWish) -> Call:
        """Turn a popped ticket into the best eligible job."""
        room, policy = wish.room, self.policy
        args: list[Argument] = [
            wish.popped, wish.worker, int(self._settings.lease_s * 1000), self._settings.claim_candidates,
            topology.TICKET, *self._ttl, "1" if wish.nudged else "", repr(policy.floor),
            " ".join(map(repr, policy.headroom)), int(self._settings.reserve_after_s * 1000),
            "" if room is None else " ".join(str(pool.free_bytes) for pool in room.pools),
            "" if room is None else " ".join(str(pool.total_bytes) for pool in room.pools),
            f" {' '.join(wish.models)} " if wish.models else "",
        ]  # fmt: skip
        needs = {} if room is None else _needs(room)
        for queue in wish.queues:
            args += (queue, needs.get(queue, ""))
        return Call(self._script("claim"), (topology.RUNNING,), tuple(args))

    @staticmethod
    def read_claim(reply: object) -> Claim | NotClaimed:
        """The claim, or why there is none."""
        parts = cast("Sequence[object]", reply)
        if len(parts) <= _NOT_CLAIMED_PARTS:
            return NotClaimed(NoClaim(text(parts[0])), _blocked(parts[1:]))
        job_id, attempt, queue, message, payload, seq, submitted, expire, links, *scheduled = parts
        score, first_us, cost_us, rank, relegated, turn, preempted, policy = map(text, scheduled)
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
            score=int(score),
            first_us=int(first_us),
            cost_us=int(cost_us),
            rank=int(rank),
            relegated=relegated == "1",
            floor=turn == "floor",
            preempted=int(preempted),
            goes_on=policy in _GOES_ON,
        )

    def append(
        self, job_id: str, attempt: int, events: Sequence[Append], *, after: int, first_output: bool
    ) -> Call:
        """Append events of a running attempt behind event number ``after``; safe to repeat."""
        args: list[Argument] = [job_id, attempt, "1" if first_output else "", after]
        for event in events:
            args += (event.kind.value, event.text, event.data, ",".join(map(str, event.token_ids)))
        return Call(self._script("append"), (topology.JOB + job_id, topology.LOG + job_id), tuple(args))

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
            "" if ending.actual_us is None else ending.actual_us,
            topology.TICKET,
        )
        return Call(self._script("finish"), (topology.JOB + job_id, topology.RUNNING), args)

    def ack(self, job_id: str, attempt: int) -> Call:
        """Celery is done with a delivery."""
        return Call(
            self._script("ack"),
            (topology.JOB + job_id, topology.RUNNING),
            (job_id, attempt, *self._ttl, topology.TICKET),
        )

    def release(self, job_id: str, attempt: int, event_data: str = "") -> Call:
        """Hand a claim back; with data, a `preempted` event says so to whoever reads the stream."""
        args = (job_id, attempt, topology.TICKET, event_data)
        return Call(self._script("release"), (topology.JOB + job_id, topology.RUNNING), args)

    def crash(self, job_id: str, attempt: int, outputs: int, *, death: int, alone: bool) -> Call:
        """Count an engine's death under an attempt."""
        return Call(
            self._script("crash"), (topology.JOB + job_id,), (attempt, outputs, "1" if alone else "", death)
        )

    def renew(self, entries: Sequence[tuple[str, int]]) -> Call:
        """Prolong leases."""
        names = [topology.run_entry(job_id, attempt) for job_id, attempt in entries]
        return Call(self._script("renew"), (topology.RUNNING,), (int(self._settings.lease_s * 1000), *names))

    @staticmethod
    def read_renew(reply: object) -> list[AttemptState]:
        """One state per entry, in order."""
        return [cast("AttemptState", text(state)) for state in cast("Sequence[object]", reply)]

    def report(self, worker: str, report: str, ttl_s: float, served: Sequence[tuple[str, str]]) -> Call:
        """A worker tells that it lives, what it is, and which models (modality, alias) it serves."""
        flat = [part for pair in served for part in pair]
        return Call(self._script("report"), (topology.WORKERS,), (worker, report, int(ttl_s * 1000), *flat))

    def retire(self, worker: str) -> Call:
        """A worker tells that it goes."""
        return Call(self._script("report"), (topology.WORKERS,), (worker, "", 0))

    def cancel(self, job_id: str, reach: CancelReach = "any") -> Call:
        """End a waiting job, flag a running one, leave a tombstone for one that isn't there yet."""
        args: tuple[Argument, ...] = (
            job_id, topology.TICKET, *self._ttl, reach,
            self._settings.tombstone_ttl_s, self._settings.tombstones,
        )  # fmt: skip
        return Call(self._script("cancel"), (topology.JOB + job_id, topology.TOMBSTONES), args)

    def reprioritize(self, job_id: str, urgency: Urgency, expire_ms: int | None) -> Call:
        """Give a waiting job another class or deadline.

        Args:
            job_id: the job.
            urgency: what it is to be from now on; its target counts from now.
            expire_ms: milliseconds from now until its new deadline; None: it expires when it did.
        """
        keys = (topology.JOB + job_id, topology.EXPIRY, topology.LATE)
        args: tuple[Argument, ...] = (
            job_id, topology.TICKET, urgency.rank, urgency.target_us, urgency.rank_us + urgency.slack_us,
            repr(urgency.factor), repr(urgency.low_factor), "1" if urgency.relegates else "",
            "" if expire_ms is None else expire_ms,
        )  # fmt: skip
        return Call(self._script("reprioritize"), keys, args)

    def weigh(self, tenant: str, weight: float) -> Call:
        """Set a tenant's weight; the reply is "ok", or "full" if too many have one."""
        keys = (topology.WEIGHTS, topology.TENANTS_WAITING, topology.SHARE)
        return Call(self._script("weigh"), keys, (tenant, repr(float(weight)), MOST_WEIGHTS))

    def learn(self, queue: str, model: str, keep: float, numbers: Mapping[str, float]) -> Call:
        """Add numbers to what all workers have learnt about a kind of job.

        Args:
            queue: the ledger queue.
            model: alias that the jobs name, or empty.
            keep: factor by which what is there counts, 0 to 1.
            numbers: what is added, by name; always the same names.
        """
        flat = [part for name, value in numbers.items() for part in (name, repr(float(value)))]
        key = topology.statistics_of(queue, model)
        return Call(self._script("learn"), (key,), (repr(float(keep)), _LEARNT_TTL_S, *flat))

    @staticmethod
    def read_learn(reply: object) -> dict[str, float]:
        """The sums by name."""
        flat = [text(part) for part in cast("Sequence[object]", reply)]
        return {name: float(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}

    def teach(self, queue: str, model: str, first: Sequence[float], cost: Sequence[float]) -> Call:
        """Say how long jobs of a kind take.

        Args:
            queue: the ledger queue.
            model: alias that the jobs name, or empty.
            first: microseconds until the first output per unit of 1, prompt characters, new tokens, images and
                media bytes.
            cost: the same for all of a job.
        """
        named = [*zip(_FIRST_FIELDS, first, strict=True), *zip(_COST_FIELDS, cost, strict=True)]
        flat = [part for name, value in named for part in (name, repr(float(value)))]
        return Call(self._script("teach"), (topology.work_of(queue, model),), (_LEARNT_TTL_S, *flat))

    def sweep(self, queues: Sequence[str] = topology.QUEUES) -> Call:
        """What time brings about."""
        args: tuple[Argument, ...] = (
            self._settings.sweep_limit, topology.TICKET, *self._ttl, self._settings.most_losses,
            int(_LATE_SWEEP * self._settings.sweep_s * 1000), int(self._settings.lease_s * 1000),
            int(_MISSING_SWEEPS * self._settings.sweep_s * 1000), *queues,
        )  # fmt: skip
        keys = (topology.RUNNING, topology.EXPIRY, topology.SWEPT, topology.MISSING)
        return Call(self._script("sweep"), keys, args)

    @staticmethod
    def read_sweep(reply: object) -> SweepReport:
        """Counts of one sweep."""
        requeued, lost, promoted, expired, tickets = (int(text(n)) for n in cast("Sequence[object]", reply))
        return SweepReport(requeued=requeued, lost=lost, promoted=promoted, expired=expired, tickets=tickets)

    def dead(
        self, letter: str, *, source: str = "", raw_message: bytes = b"", task_id: str = "", reason: str = ""
    ) -> Call:
        """Put what can't be understood among the dead letters; ``task_id``'s Celery result then is a failure."""
        args: tuple[Argument, ...] = (
            raw_message, letter, self._settings.dead_letters, BIRTH_TTL_S,
            task_id, reason, self._settings.job_ttl_s,
        )  # fmt: skip
        return Call(self._script("dead"), (source or topology.DEAD, topology.DEAD), args)

    def purge(self, job_id: str) -> Call:
        """Drop the payload and the media of a quarantined job; the reply is 1, or 0 if there was nothing."""
        keys = (topology.JOB + job_id, topology.QUARANTINED)
        return Call(self._script("purge"), keys, (job_id, self._settings.blob_grace_s))

    def replayed(self, job_id: str, new_id: str) -> Call:
        """Note which job runs a quarantined one's payload again."""
        return Call(self._script("replayed"), (topology.JOB + job_id,), (new_id,))
