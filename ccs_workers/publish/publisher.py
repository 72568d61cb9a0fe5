"""Writes the outputs of one engine step, of all its jobs, in one pipeline; then lets ended jobs end."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from ccs_broker.contract import EventKind
from ccs_broker.errors import InternalError
from ccs_broker.ledger import Append
from ccs_broker.ledger.faults import fault_word, is_transient
from ccs_workers.engines.protocol import Done, EngineOutput, Failed
from ccs_workers.publish.patience import OUTAGE, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccs_broker.ledger import Ledger
    from ccs_workers.publish.run import JobRun

logger = logging.getLogger(__name__)


class Publisher:
    """Knows the running attempts by key. ``outputs`` is called by one reader thread per engine."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: Told when a write finds the server away, with the monotonic time at which that write began, and once it has
        #: been written: meanwhile engines wait, and use nothing of the device.
        self.on_away: Callable[[float], None] = lambda _since: None
        self.on_back: Callable[[], None] = lambda: None
        self._runs: dict[str, JobRun] = {}
        self._lock = threading.Lock()

    def register(self, run: JobRun) -> None:
        """Outputs for this attempt may come."""
        with self._lock:
            self._runs[run.key] = run

    def forget(self, run: JobRun) -> None:
        """The attempt is over."""
        with self._lock:
            self._runs.pop(run.key, None)

    def resumed(self, run: JobRun, reason: str) -> None:
        """Tell whoever reads that an attempt goes on behind what it has said."""
        self._write([(run, [Append(kind=EventKind.RESUMED, data=json.dumps({"reason": reason}))])])

    def outputs(self, outputs: Sequence[tuple[str, EngineOutput]]) -> None:
        """Publish one frame; a job's end is passed on only after all its events have been written."""
        with self._lock:
            runs = {key: self._runs[key] for key, _ in outputs if key in self._runs}
        steps: list[tuple[JobRun, list[Append]]] = []
        for key, run in runs.items():
            events = run.appends([output for k, output in outputs if k == key])
            if events and run.state != "lost":
                steps.append((run, events))
        if steps:
            self._write(steps)
        for key, output in outputs:
            if isinstance(output, Done | Failed) and key in runs:
                runs[key].finish(output)

    def _write(self, steps: Sequence[tuple[JobRun, list[Append]]]) -> None:
        """Append, again and again while the server is away: the script skips what it has written before.

        Meanwhile the engine's pipe fills, and the engine waits: no more than that lies in memory.
        """
        began = time.monotonic()
        if not (steps := self._try_write(steps)):
            return
        self.on_away(began)
        try:
            patience = Patience()
            while patience.wait():
                if not (steps := self._try_write(steps)):
                    return
            logger.error("gave up writing events of %d jobs: the server stayed away", len(steps))
            for run, _ in steps:
                run.notice("lost")
        finally:
            self.on_back()

    def _try_write(
        self, steps: Sequence[tuple[JobRun, list[Append]]]
    ) -> Sequence[tuple[JobRun, list[Append]]]:
        calls = [
            self._ledger.calls.append(
                run.job_id,
                run.attempt,
                events,
                after=run.after,
                first_output=not run.had_output and _output(events),
            )
            for run, events in steps
        ]
        try:
            replies = self._ledger.run_many(calls)
        except (RedisError, OSError) as error:
            replies = [error] * len(calls)
        again = []
        for (run, events), reply in zip(steps, replies, strict=True):
            if isinstance(reply, Exception):
                if is_transient(reply):
                    again.append((run, events))
                else:
                    self._refused(run, reply)
            else:
                state, seq = self._ledger.calls.read_append(reply)
                run.applied(state, seq, output=_output(events))
        if len(again) < len(steps):
            OUTAGE.over()
        return again

    def _refused(self, run: JobRun, error: Exception) -> None:
        """End an attempt whose events the server will never take, and let its engine stop."""
        word = fault_word(error)
        logger.error("job %s fails: the server refuses its events (%s)", run.job_id, word)
        self.forget(run)
        run.finish(Failed(code=InternalError.code, message=f"the server refuses the job's events ({word})"))
        run.notice("cancelling")


def _output(events: Sequence[Append]) -> bool:
    """True if these events carry a job's first output."""
    return any(event.text or event.kind is EventKind.PROGRESS for event in events)
