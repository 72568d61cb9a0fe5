"""A desk without a ledger: strictly in order of arrival, on which capacity is defined."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ccs_broker.simulate.records import Blocked, Taken, jobs_of
from ccs_broker.simulate.trace import scaled
from ccs_broker.simulate.worker import make_worker
from ccs_broker.simulate.world import World

if TYPE_CHECKING:
    from ccs_broker.simulate.device import Run
    from ccs_broker.simulate.model import DeviceModel
    from ccs_broker.simulate.records import Offer, SimJob
    from ccs_broker.simulate.trace import Row

__all__ = ["ArrivalOrder", "capacity"]


class ArrivalOrder:
    """First come, first served: a job that doesn't fit holds up all behind it."""

    def __init__(self) -> None:
        self._jobs: deque[SimJob] = deque()

    def publish(self, job: SimJob, now_s: float) -> bool:
        """Put it behind all others."""
        self._jobs.append(job)
        return True

    def claim(self, offer: Offer, now_s: float) -> Taken | Blocked | None:
        """Hand out the first job if it fits."""
        if not self._jobs:
            return None
        job = self._jobs[0]
        if job.row.modality not in offer.modalities or job.demand.kv_tokens > offer.free_kv_tokens:
            return Blocked(id=job.id, need_kv_tokens=job.demand.kv_tokens)
        self._jobs.popleft()
        return Taken(id=job.id, score=job.row.arrival_s, attempt=job.attempt + 1)

    def first_output(self, job: SimJob, now_s: float) -> None:
        """Nothing is kept."""

    def finish(self, job: SimJob, run: Run, now_s: float) -> None:
        """Nothing is kept."""

    def release(self, job: SimJob, now_s: float) -> None:
        """Put it before all others."""
        self._jobs.appendleft(job)

    def rank(self, job: SimJob) -> int:
        """All are alike."""
        return 0

    def tick(self, now_s: float) -> None:
        """Time brings nothing about."""


def capacity(rows: list[Row], model: DeviceModel, workers: int = 1) -> float:
    """Jobs a second that the workers can do: all jobs of the trace by the time that FIFO takes for them.

    Every job is there at the beginning. This is the load of 1 of ``--load``.
    """
    jobs = jobs_of(scaled(rows, 0.0), model)
    modalities = tuple(dict.fromkeys(row.modality for row in rows))
    fleet = [make_worker(f"sim-{number}", model, modalities, None) for number in range(workers)]
    return len(jobs) / World(jobs, fleet, ArrivalOrder()).run()
