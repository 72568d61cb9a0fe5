"""The accounts of running attempts: what each used of the device, and what is learnt from it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ccs_broker.ledger.entries import sizes_of
from ccs_workers.engines.protocol import Done
from ccs_workers.publish.run import Spent
from ccs_workers.scheduling.meter import DeviceMeter

if TYPE_CHECKING:
    from ccs_broker.contract import Job, Outcome
    from ccs_workers.publish.run import JobRun
    from ccs_workers.scheduling.learner import Learner

__all__ = ["Accounts"]


class Accounts:
    """One per worker; each attempt is opened, closed and perhaps learnt from by its own thread."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        #: Gives out the device's time.
        self.meter: Final = DeviceMeter()

    def open(self, run: JobRun) -> None:
        """An attempt begins."""
        name = _name(run)
        self.meter.begin(name)
        run.on_first_output(partial(self.meter.first_output, name))

    def close(self, run: JobRun, end: object = None) -> Spent:
        """An attempt is over; what it used. Closing again tells the same.

        Args:
            run: the attempt.
            end: how it ended; an engine that knows its device time better than the worker's clock tells it there.
        """
        if run.spent is None:
            run.spent = self.meter.end(_name(run))
            # After a change of engines only the worker has seen all of it.
            if isinstance(end, Done) and end.usage.device_s is not None and not run.rounds:
                run.spent = Spent(device_s=max(0.0, end.usage.device_s), first_s=end.first_device_s)
        return run.spent

    def learn(self, run: JobRun, job: Job, outcome: Outcome) -> None:
        """Let the estimator learn from a job that ended well and ran in one piece."""
        if run.spent is None or not outcome.ok or run.attempt > 1 or run.rounds:
            return
        first_s, device_s = run.spent.first_s, run.spent.device_s
        self.learner.add(
            (run.claim.queue, job.model or ""),
            sizes_of(job),
            # Without output its end is the first that is heard of it.
            first_s=device_s if first_s is None else first_s,
            device_s=device_s,
        )


def _name(run: JobRun) -> str:
    return f"{run.job_id}|{run.attempt}"
