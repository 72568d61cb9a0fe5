"""A worker of a few lines for tests of the client: it claims a job and says what the test has it say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import redis

from ccs_broker.contract import Outcome, OutcomeState
from ccs_broker.contract.event import EventKind
from ccs_broker.contract.wire import dump_json
from ccs_broker.ledger import Append, Claim, ClaimWish, Ending, Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.settings import LedgerSettings


class ScriptedWorker:
    """Speaks to the ledger directly, one job at a time."""

    def __init__(self, url: str, settings: LedgerSettings | None = None) -> None:
        self.redis = redis.Redis.from_url(url)
        self.ledger = Ledger(self.redis, settings)
        self.job: Claim | None = None
        self._seq = 0
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def claim(self, queue: str = "ccs.text") -> Claim:
        """Take the best waiting job of a queue."""
        assert self.redis.rpop(f"{queue}:1") is not None, f"no ticket on {queue}"
        claim = self.ledger.claim(ClaimWish(popped=queue, queues=(queue,), worker="scripted"))
        assert isinstance(claim, Claim)
        self.job, self._seq, self._text = claim, claim.seq, ""
        return claim

    def say(self, *texts: str) -> str:
        """Append a delta for each text; gives what the job must know."""
        return self.append([Append(kind=EventKind.DELTA, text=text) for text in texts])

    def append(self, events: Sequence[Append]) -> str:
        """Append events; gives what the job must know."""
        assert self.job is not None
        state, self._seq = self.ledger.append(
            self.job.id, self.job.attempt, events, after=self._seq, first_output=True
        )
        self._text += "".join(event.text for event in events)
        return state

    def finish(self, state: OutcomeState = OutcomeState.SUCCEEDED, **fields: object) -> None:
        """End the job with all that was said as its text."""
        assert self.job is not None
        outcome = Outcome(state=state, text=self._text, attempts=self.job.attempt, **fields)
        ending = Ending(state=state, outcome=dump_json(outcome).decode())
        assert self.ledger.finish(self.job.id, self.job.attempt, ending)

    def run(self, *texts: str) -> None:
        """Claim a text job, say it all and finish."""
        self.claim()
        self.say(*texts)
        self.finish()
