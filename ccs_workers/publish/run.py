"""One attempt of one job while it runs: its own text, counters and end, owned by the thread that waits for it."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ccs_broker.contract import EventKind
from ccs_broker.ledger import Append
from ccs_workers.engines.protocol import Delta, Done, EngineOutput, Failed, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccs_broker.ledger import Claim
    from ccs_broker.ledger.records import AttemptState


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt ended without its engine's word: ``reason`` says how the engine died."""

    reason: str


RunEnd = Done | Failed | Lost


class JobRun:
    """Collects what the engine says of one attempt.

    The engine's reader thread alone calls :meth:`appends` and :meth:`applied`; any thread may call :meth:`notice`
    and :meth:`finish`; the job's own thread waits.
    """

    def __init__(self, claim: Claim) -> None:
        self.job_id: Final = claim.id
        self.attempt: Final = claim.attempt
        self.key: Final = f"{claim.id}|{claim.attempt}"
        self.after = claim.seq
        self.had_output = False
        #: What the ledger said last: "ok" until it says otherwise.
        self.state: AttemptState = "ok"
        self._texts: list[str] = []
        self._end: RunEnd | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None

    @property
    def text(self) -> str:
        """All deltas so far, joined."""
        return "".join(self._texts)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Say how the engine is told to stop; called at once if the ledger has asked for it already."""
        with self._lock:
            self._stop = stop
            asked = self.state != "ok"
        if asked:
            stop()

    def notice(self, state: AttemptState) -> None:
        """The ledger says that the attempt is lost, cancelled or expired: stop at the next step."""
        with self._lock:
            if state == "ok" or self.state != "ok":
                return
            self.state = state
            stop = self._stop
        if stop is not None:
            stop()

    def appends(self, outputs: Sequence[EngineOutput]) -> list[Append]:
        """Events for the outputs of one step, neighbouring deltas joined to one; the text grows with them."""
        events: list[Append] = []
        for output in outputs:
            match output:
                case Delta():
                    self._texts.append(output.text)
                    last = events[-1] if events else None
                    if last is not None and last.kind is EventKind.DELTA:
                        events[-1] = Append(
                            kind=EventKind.DELTA,
                            text=last.text + output.text,
                            token_ids=last.token_ids + output.token_ids,
                        )
                    else:
                        events.append(
                            Append(kind=EventKind.DELTA, text=output.text, token_ids=output.token_ids)
                        )
                case Progress():
                    data = json.dumps(dict(output.data), allow_nan=False)
                    events.append(Append(kind=EventKind.PROGRESS, data=data))
                case Done() | Failed():
                    pass
        return events

    def applied(self, state: AttemptState, seq: int, *, output: bool) -> None:
        """The ledger took the events (or says why not)."""
        if state != "lost":
            self.after = seq
            self.had_output = self.had_output or output
        self.notice(state)

    def finish(self, end: RunEnd) -> None:
        """The attempt is over; the first end counts."""
        with self._lock:
            if self._end is None:
                self._end = end
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> RunEnd | None:
        """Wait for the end; None if it didn't come in time."""
        self._ended.wait(timeout_s)
        return self._end
