"""A worker as small as one can be, on the bare ledger: for tests of what stands on the other side."""

from __future__ import annotations

import json
import threading

import redis

from ccs_broker import topology
from ccs_broker.contract import ErrorInfo, EventKind, Job, Outcome, OutcomeState, Usage
from ccs_broker.ledger import Append, Claim, ClaimWish, Ending, Ledger

PIECES = ("The capital ", "of France\n", "is Paris ", "🗼.")
TEXT = "".join(PIECES)
REPORT = {
    "state": "ready",
    "modalities": ["text"],
    "busy": 1,
    "slots": 4,
    "models": [{"alias": "tiny", "modality": "text", "state": "ready", "device": "cpu"}],
}


class TinyWorker:
    """Runs one job after another in a thread; `metadata` says how it ends and whether it waits midway."""

    def __init__(self, url: str) -> None:
        self.jobs: list[Job] = []
        self.go_on = threading.Event()
        self._redis = redis.Redis.from_url(url)
        self._ledger = Ledger(self._redis)
        self._ledger.run(self._ledger.calls.report("tiny@here", json.dumps(REPORT), 60.0, [("text", "tiny")]))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self.go_on.set()
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        lists = {topology.tickets_of(queue): queue for queue in topology.QUEUES}
        while not self._ended.is_set():
            popped = self._redis.brpop(list(lists), timeout=0.05)
            if popped is None:
                continue
            wish = ClaimWish(popped=lists[popped[0].decode()], queues=topology.QUEUES, worker="tiny@here")
            claim = self._ledger.claim(wish)
            if isinstance(claim, Claim):
                self._work(claim)
                self._ledger.ack(claim.id, claim.attempt)

    def _work(self, claim: Claim) -> None:
        job = Job.model_validate_json(claim.payload)
        self.jobs.append(job)
        seq = claim.seq
        for number, piece in enumerate(PIECES):
            deltas = [Append(kind=EventKind.DELTA, text=piece)]
            if job.modality == "audio":
                deltas.insert(
                    0, Append(kind=EventKind.PROGRESS, data=json.dumps({"window": number + 1, "windows": 4}))
                )
            state, seq = self._ledger.append(
                claim.id, claim.attempt, deltas, after=seq, first_output=number == 0
            )
            if job.metadata.get("hold") and number == 1:
                assert self.go_on.wait(20)
        ended = OutcomeState(job.metadata.get("end", "cancelled" if state == "cancelling" else "succeeded"))
        error = ErrorInfo(code="OUT_OF_MEMORY", message="12 GB are not 16 GB", retryable=True)
        outcome = Outcome(
            state=ended,
            text=TEXT,
            model="tiny",
            worker="tiny@here",
            attempts=claim.attempt,
            usage=Usage(completion_tokens=4),
            error=error if ended is OutcomeState.FAILED else None,
        )
        body = outcome.model_dump_json(exclude={"timings"})
        self._ledger.finish(claim.id, claim.attempt, Ending(state=ended, outcome=body))
