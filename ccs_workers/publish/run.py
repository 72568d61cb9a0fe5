"""One attempt of one job while it runs: its own text, counters and end, owned by the thread that waits for it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ccs_broker.contract import EventKind
from ccs_broker.ledger import Append
from ccs_workers.engines.protocol import Delta, Done, EngineOutput, Failed, Progress, Resume

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import JsonValue

    from ccs_broker.ledger import Claim

#: Why an attempt must stop: the ledger says so, its runtime is used up, the worker shuts down, a more urgent job needs
#: its place, the memory it turned out to need isn't there, or its model makes room for another one.
StopReason = Literal[
    "ok", "lost", "cancelling", "expired", "overrun", "drain", "preempted", "memory", "switch"
]


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt's engine died: ``reason`` says how."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of the device that an attempt used, of time shared with other jobs its part."""

    device_s: float
    #: The same until its first output; None if it had none.
    first_s: float | None


RunEnd = Done | Failed | Lost


class JobRun:
    """Collects what engines say of one attempt, over as many engine processes as it takes.

    An engine's reader thread alone calls :meth:`appends` and :meth:`applied`; any thread may call :meth:`notice`
    and :meth:`finish`; the job's own thread waits.
    """

    def __init__(self, claim: Claim) -> None:
        self.claim: Final = claim
        self.began_at: Final = time.monotonic()
        self.job_id: Final = claim.id
        self.attempt: Final = claim.attempt
        #: Times an engine has given the attempt up: by its death, or because the job had to make way.
        self.rounds = 0
        #: The device's memory didn't hold it once: it was, or is, tried again alone.
        self.out_of_memory = False
        #: Number of the last event in the job's log.
        self.after = claim.seq
        self.had_output = False
        #: "ok" until there is a reason to stop; the first reason stays, but that the attempt is lost beats all.
        self.state: StopReason = "ok"
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._progress: list[Mapping[str, JsonValue]] = []
        self._end: RunEnd | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._making_way = False
        self._said_before = 0
        self._on_output: Callable[[], None] | None = None
        self._on_first_output: Callable[[], None] | None = None
        #: Seconds of the device that earlier attempts used.
        self.earlier_device_s = 0.0
        #: What this attempt used; None while it runs.
        self.spent: Spent | None = None

    @property
    def key(self) -> str:
        """Name of the attempt for its engine; another one each round, since a word to one must not reach the next."""
        return f"{self.job_id}|{self.attempt}" + (f"|{self.rounds}" if self.rounds else "")

    @property
    def making_way(self) -> bool:
        """True once the job was asked to let another one have the engine, in this round."""
        return self._making_way

    @property
    def text(self) -> str:
        """All deltas so far, joined."""
        return "".join(self._texts)

    @property
    def outputs(self) -> int:
        """A number that grows with every token and progress output."""
        return len(self._token_ids) + len(self._progress) + sum(map(len, self._texts))

    def restore(self, earlier: Resume, device_s: float) -> None:
        """Take over what earlier attempts have logged, and the device time they told."""
        self.earlier_device_s = device_s
        self._texts = [earlier.text]
        self._token_ids = list(earlier.token_ids)
        self._progress = list(earlier.progress)
        self.had_output = bool(earlier.text or earlier.progress)

    def resume(self) -> Resume | None:
        """What the next engine has to go on behind; None if nothing was said so far."""
        if not (self._token_ids or self._progress or self.text):
            return None
        return Resume(text=self.text, token_ids=tuple(self._token_ids), progress=tuple(self._progress))

    def again(self) -> None:
        """Forget the end: the job goes on behind what it has said, under another key."""
        with self._lock:
            self.rounds += 1
            self._end = None
            self._stop = None
            self._making_way = False
            self._on_output = None
            self._ended.clear()

    def make_way(self) -> None:
        """Stop at the next step, to go on later: another job must have the engine to itself."""
        with self._lock:
            self._making_way = True
            stop = self._stop
        if stop is not None:
            stop()

    def on_output(self, tell: Callable[[], None]) -> None:
        """Ask to be told, once, when more has been said than so far; from the reader's thread."""
        self._said_before, self._on_output = self.outputs, tell

    def on_first_output(self, tell: Callable[[], None]) -> None:
        """Ask to be told when this attempt has said anything; from the reader's thread."""
        self._on_first_output = tell

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Say how the engine is told to stop; called at once if there is a reason already."""
        with self._lock:
            self._stop = stop
            asked = self.state != "ok" or self._making_way
        if asked:
            stop()

    def notice(self, reason: StopReason) -> None:
        """There is a reason to stop at the next step."""
        with self._lock:
            if reason == "ok" or (self.state != "ok" and reason != "lost"):
                return
            self.state = reason
            stop = self._stop
        if stop is not None:
            stop()

    def appends(self, outputs: Sequence[EngineOutput]) -> list[Append]:
        """Events for the outputs of one step, neighboring deltas joined to one; the text grows with them."""
        events: list[Append] = []
        for output in outputs:
            match output:
                case Delta():
                    self._texts.append(output.text)
                    self._token_ids += output.token_ids
                    _add_delta(events, output)
                case Progress():
                    self._progress.append(output.data)
                    data = json.dumps(dict(output.data), allow_nan=False)
                    events.append(Append(kind=EventKind.PROGRESS, data=data))
                case Done() | Failed():
                    pass
        return events

    def applied(self, state: StopReason, seq: int, *, output: bool) -> None:
        """The ledger took the events (or says why not)."""
        if state != "lost":
            self.after = seq
            self.had_output = self.had_output or output
        if output and self._on_first_output is not None:
            self._on_first_output()
            self._on_first_output = None
        self.notice(state)
        tell = self._on_output
        if tell is not None and self.outputs > self._said_before:
            self._on_output = None
            tell()

    def finish(self, end: RunEnd) -> None:
        """The engine is done with the attempt; the first end counts."""
        with self._lock:
            if self._end is None:
                self._end = end
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> RunEnd | None:
        """Wait for the end; None if it didn't come in time."""
        self._ended.wait(timeout_s)
        return self._end


def _add_delta(events: list[Append], output: Delta) -> None:
    last = events[-1] if events else None
    if last is None or last.kind is not EventKind.DELTA:
        events.append(Append(kind=EventKind.DELTA, text=output.text, token_ids=output.token_ids))
        return
    events[-1] = Append(
        kind=EventKind.DELTA, text=last.text + output.text, token_ids=last.token_ids + output.token_ids
    )
