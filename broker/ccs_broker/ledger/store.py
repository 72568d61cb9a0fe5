"""Runs ledger calls on a synchronous Redis client; a script the server has forgotten is loaded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from redis.exceptions import NoScriptError

from ccs_broker.blobs import put_blob
from ccs_broker.ledger.calls import Call, LedgerCalls, text
from ccs_broker.scripts import STOCK
from ccs_broker.settings import LedgerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis import Redis

    from ccs_broker.ledger.records import (
        Append,
        AttemptState,
        CancelReach,
        Claim,
        ClaimWish,
        Ending,
        Entry,
        NotClaimed,
        Published,
        SweepReport,
    )
    from ccs_broker.priority import Urgency
    from ccs_broker.scripts import Scripts


class Ledger:
    """The ledger's verbs. Errors of the server (redis.exceptions) pass through."""

    def __init__(
        self, redis: Redis, settings: LedgerSettings | None = None, scripts: Scripts = STOCK
    ) -> None:
        self.redis = redis
        self.calls = LedgerCalls(settings or LedgerSettings(), scripts)

    def run(self, call: Call) -> object:
        """Run one call in one round trip (two after the server lost its scripts)."""
        try:
            return self.redis.execute_command(*call.evalsha())
        except NoScriptError:
            self.redis.script_load(call.script.source)
            return self.redis.execute_command(*call.evalsha())

    def run_many(self, calls: Sequence[Call]) -> list[object]:
        """Run calls in one pipeline; the reply of a call that failed is its exception.

        A refused script (NOSCRIPT) did nothing, so only those are loaded and run again.
        """
        replies = self._pipeline(calls)
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            for source in {calls[i].script.source for i in again}:
                self.redis.script_load(source)
            for i, reply in zip(again, self._pipeline([calls[i] for i in again]), strict=True):
                replies[i] = reply
        return replies

    def _pipeline(self, calls: Sequence[Call]) -> list[object]:
        with self.redis.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command(*call.evalsha())
            return list(pipe.execute(raise_on_error=False))

    def store_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Store media by SHA-256, ahead of the job that refers to them."""
        if blobs:
            with self.redis.pipeline(transaction=False) as pipe:
                for sha, data in blobs.items():
                    pipe.execute_command(*put_blob(sha, data))
                pipe.execute()

    def publish(self, entry: Entry) -> Published:
        """Store a job or task and push its ticket."""
        return self.calls.read_publish(self.run(self.calls.publish(entry)))

    def claim(self, wish: ClaimWish) -> Claim | NotClaimed:
        """Turn a popped ticket into the best eligible job."""
        return self.calls.read_claim(self.run(self.calls.claim(wish)))

    def append(
        self, job_id: str, attempt: int, events: Sequence[Append], *, after: int, first_output: bool = False
    ) -> tuple[AttemptState, int]:
        """Append events of a running attempt behind event number ``after``; safe to repeat."""
        call = self.calls.append(job_id, attempt, events, after=after, first_output=first_output)
        return self.calls.read_append(self.run(call))

    def finish(self, job_id: str, attempt: int, ending: Ending) -> bool:
        """Write the outcome; False if the attempt no longer holds the job."""
        return self.run(self.calls.finish(job_id, attempt, ending)) == 1

    def ack(self, job_id: str, attempt: int) -> str:
        """Celery is done with a delivery: "done", "deleted", "quarantined" or "newer"."""
        return text(self.run(self.calls.ack(job_id, attempt)))

    def release(self, job_id: str, attempt: int, event_data: str = "") -> bool:
        """Hand a claim back; False if the attempt no longer holds the job."""
        return self.run(self.calls.release(job_id, attempt, event_data)) == 1

    def crash(self, job_id: str, attempt: int, outputs: int, *, death: int, alone: bool) -> tuple[int, int]:
        """Count an engine's death: crashes without progress, crashes alone; (-1, -1) if the attempt is lost.

        Safe to repeat: a death that has been counted isn't counted again.

        Args:
            job_id: the job.
            attempt: the claim that ran it.
            outputs: a number that grows with the job's progress.
            death: a number that no other death under this attempt has.
            alone: whether no other job shared the engine.
        """
        crashes, alone_crashes = cast(
            "Sequence[int]",
            self.run(self.calls.crash(job_id, attempt, outputs, death=death, alone=alone)),
        )
        return crashes, alone_crashes

    def renew(self, entries: Sequence[tuple[str, int]]) -> list[AttemptState]:
        """Prolong leases; one state per entry, in order."""
        return self.calls.read_renew(self.run(self.calls.renew(entries))) if entries else []

    def cancel(self, job_id: str, reach: CancelReach = "any") -> str:
        """Cancel: "missing", "cancelled", "cancelling", "running" (left alone) or the state it had ended in."""
        return text(self.run(self.calls.cancel(job_id, reach)))

    def reprioritize(self, job_id: str, urgency: Urgency, expire_ms: int | None = None) -> str:
        """Change the class or deadline of a waiting job: "ok", "missing", or the state it is in."""
        return text(self.run(self.calls.reprioritize(job_id, urgency, expire_ms)))

    def weigh(self, tenant: str, weight: float) -> bool:
        """Set a tenant's weight; False if too many have one of their own."""
        return text(self.run(self.calls.weigh(tenant, weight))) == "ok"

    def learn(self, queue: str, model: str, keep: float, numbers: Mapping[str, float]) -> dict[str, float]:
        """Add numbers to what was learnt about a kind of job, whose past counts ``keep``; the sums."""
        return self.calls.read_learn(self.run(self.calls.learn(queue, model, keep, numbers)))

    def teach(self, queue: str, model: str, first: Sequence[float], cost: Sequence[float]) -> None:
        """Say how long jobs of a kind take: coefficients of 1, prompt characters, new tokens, images, media bytes."""
        self.run(self.calls.teach(queue, model, first, cost))

    def sweep(self) -> SweepReport:
        """What time brings about, for all queues."""
        return self.calls.read_sweep(self.run(self.calls.sweep()))

    def dead(
        self, letter: str, *, source: str = "", raw_message: bytes = b"", task_id: str = "", reason: str = ""
    ) -> bool:
        """Put what can't be understood among the dead letters; False if somebody else had.

        Args:
            letter: what is kept of it, as JSON.
            source: the list it lies on, empty if it has been popped.
            raw_message: its bytes as they lie there.
            task_id: the Celery task it was, whose result says that it failed; empty where nobody is to be told.
            reason: what that result says.
        """
        call = self.calls.dead(letter, source=source, raw_message=raw_message, task_id=task_id, reason=reason)
        return self.run(call) == 1
