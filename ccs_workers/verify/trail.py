"""What one job has said over all its attempts, kept as a worker keeps it, and checked as it comes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccs_broker.contract import Event, EventKind
from ccs_workers.engines.protocol import Delta, Done, Failed, Progress, Resume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.engines.protocol import EngineJob, EngineOutput
    from ccs_workers.verify.records import Check

__all__ = ["Trail", "resume_behind"]


class Trail:
    """One run of one job. An engine's reader thread adds to it; the bench reads it under its lock."""

    def __init__(self, check: Check, *, cuts: Sequence[int] = (), resume: Resume | None = None) -> None:
        """``cuts``: counts of outputs after which it is cancelled and continued; ``resume``: what was said before."""
        self.check = check
        self.outputs: list[Delta | Progress] = []
        self.end: Done | Failed | None = None
        #: Its engine died under it.
        self.lost = False
        #: Times it was cut off and went on.
        self.resumed = 0
        #: It began behind what an earlier run had said.
        self.continued = resume is not None
        #: What isn't as the protocol or the contract wants it.
        self.faults: list[str] = []
        self._before = resume or check.job.resume
        self._cuts = sorted(cuts)
        #: The cut for which it is being cancelled; 0: none.
        self._cutting = 0

    @property
    def text(self) -> str:
        """All deltas joined."""
        return self._earlier.text + "".join(one.text for one in self.outputs if isinstance(one, Delta))

    @property
    def token_ids(self) -> tuple[int, ...]:
        told = (number for one in self.outputs if isinstance(one, Delta) for number in one.token_ids)
        return (*self._earlier.token_ids, *told)

    @property
    def progress(self) -> tuple[dict[str, Any], ...]:
        told = (one.data for one in self.outputs if isinstance(one, Progress))
        return tuple(dict(data) for data in (*self._earlier.progress, *told))

    @property
    def unused_cuts(self) -> tuple[int, ...]:
        """Cuts that it ended before."""
        return (*([self._cutting] if self._cutting else ()), *self._cuts)

    @property
    def paused(self) -> bool:
        """It was cut off, and is to go on."""
        cancelled = isinstance(self.end, Done) and self.end.finish_reason == "cancelled"
        return self.lost or (cancelled and bool(self._cutting))

    @property
    def finished(self) -> bool:
        return self.end is not None and not self.paused

    @property
    def _earlier(self) -> Resume:
        return self._before or Resume(text="")

    def resume(self) -> Resume | None:
        """What the next engine has to go on behind; None if nothing was said so far."""
        resume = Resume(text=self.text, token_ids=self.token_ids, progress=self.progress)
        return resume if resume.text or resume.token_ids or resume.progress else None

    def next_job(self, key: str) -> EngineJob:
        """The job as the engine gets it now: for the first time, or to go on."""
        if self.paused:
            self.resumed += 1
        self.end, self.lost, self._cutting = None, False, 0
        return replace(self.check.job, key=key, resume=self.resume())

    def take(self, output: EngineOutput) -> bool:
        """Add an output; True where the job is to be cancelled now."""
        match output:
            case Delta() | Progress():
                self._check_event(output)
                self.outputs.append(output)
                return self._is_cut()
            case Done() | Failed():
                self.end = output
        return False

    def _is_cut(self) -> bool:
        count = len(self.outputs)
        if self._cuts and count >= self._cuts[0] and not self._cutting:
            self._cutting = self._cuts[0]
            # Those that were passed while it was being stopped are passed for good.
            self._cuts = [cut for cut in self._cuts if cut > count]
            return True
        return self.check.stop_after == count

    def _check_event(self, output: Delta | Progress) -> None:
        """Try to make the event that subscribers get."""
        try:
            if isinstance(output, Delta):
                output.text.encode()
                Event(job="check", seq=1, kind=EventKind.DELTA, text=output.text)
                if any(number < 0 for number in output.token_ids):
                    self.faults.append("a negative token id")
            else:
                json.dumps(dict(output.data), allow_nan=False)
                Event(job="check", seq=1, kind=EventKind.PROGRESS, data=dict(output.data))
        except (TypeError, ValueError) as error:
            self.faults.append(f"an output that can't be an event ({type(error).__name__})")


def resume_behind(outputs: Sequence[Delta | Progress], earlier: Resume | None = None) -> Resume:
    """What is logged when a job is cut off right behind these outputs."""
    before = earlier or Resume(text="")
    deltas = [one for one in outputs if isinstance(one, Delta)]
    return Resume(
        text=before.text + "".join(one.text for one in deltas),
        token_ids=(*before.token_ids, *(number for one in deltas for number in one.token_ids)),
        progress=(*before.progress, *(dict(one.data) for one in outputs if isinstance(one, Progress))),
    )
