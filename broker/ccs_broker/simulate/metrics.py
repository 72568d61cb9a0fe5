"""What a run over a trace amounts to, in numbers; every job counts, refused and relegated ones too."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccs_broker.contract.words import QosClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccs_broker.simulate.records import SimJob

__all__ = ["URGENT", "Summary", "jain", "percentile", "shares_of_demand", "summarize"]

#: The classes whose callers wait for an answer.
URGENT = (QosClass.REALTIME, QosClass.INTERACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Seconds are from arrival to first output; a ratio is None where it would be over no jobs at all.

    A job is *attainable* if its own work, alone on the device, meets its target. Refused jobs missed theirs and have no
    first output; relegated ones count with the time they got.
    """

    jobs: int
    attainable: int
    mean_first_s: float | None
    mean_urgent_first_s: float | None
    median_first_s: Mapping[str, float | None]
    p90_first_s: Mapping[str, float | None]
    #: Share of the attainable jobs that met their target: of each class, of realtime and interactive, of all.
    met: Mapping[str, float | None]
    met_urgent: float | None
    met_attainable: float | None
    #: Share of all jobs, attainable or not, that met their target.
    met_of_all: float
    #: 99th percentile over realtime jobs that were accepted and not relegated.
    p99_realtime_first_s: float | None
    #: Longest wait of a job that was accepted and not relegated, and of any that was accepted.
    longest_kept_first_s: float | None
    longest_first_s: float | None
    relegated: int
    refused: int
    preempted: int
    #: Claimed by the floor, out of their turn.
    floor_turns: int
    #: Jain's index of the tenants' device time over their weights, until the last arrival: 1 is equal shares.
    fairness: float | None
    #: Jobs a second, from the first arrival to the last end.
    throughput_per_s: float
    #: Share of the time until the last end in which the devices worked.
    utilization: float


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that so many of the values don't exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] if ordered else None


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything; None of none, or of zeros."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def summarize(
    jobs: Sequence[SimJob], *, busy_s: float, workers: int, weights: Mapping[str, float] | None = None
) -> Summary:
    """Judge a run.

    Args:
        jobs: the jobs after the run.
        busy_s: seconds in which a device worked, summed over the devices.
        workers: their number.
        weights: the tenants' weights where they aren't 1.
    """
    attainable = [job for job in jobs if job.attainable]
    urgent = [job for job in jobs if job.row.qos in URGENT]
    kept = [job for job in jobs if not job.relegated and not job.refused]
    by_class = {qos.value: [job for job in jobs if job.row.qos is qos] for qos in QosClass}
    ends = [job.end_s for job in jobs if job.end_s is not None]
    last_s = max(ends, default=0.0)
    span_s = last_s - min((job.row.arrival_s for job in jobs), default=0.0)
    received = _received(jobs, weights or {})
    return Summary(
        jobs=len(jobs),
        attainable=len(attainable),
        mean_first_s=_mean(_waits(jobs)),
        mean_urgent_first_s=_mean(_waits(urgent)),
        median_first_s={qos: percentile(_waits(own), 0.5) for qos, own in by_class.items()},
        p90_first_s={qos: percentile(_waits(own), 0.9) for qos, own in by_class.items()},
        met={qos: _met([job for job in own if job.attainable]) for qos, own in by_class.items()},
        met_urgent=_met([job for job in urgent if job.attainable]),
        met_attainable=_met(attainable),
        met_of_all=_met(jobs) or 0.0,
        p99_realtime_first_s=percentile(
            _waits(job for job in kept if job.row.qos is QosClass.REALTIME), 0.99
        ),
        longest_kept_first_s=max(_waits(kept), default=None),
        longest_first_s=max(_waits(jobs), default=None),
        relegated=sum(job.relegated for job in jobs),
        refused=sum(job.refused for job in jobs),
        preempted=sum(job.preempted for job in jobs),
        floor_turns=sum(job.floor for job in jobs),
        fairness=jain(list(received.values())),
        throughput_per_s=len(ends) / span_s if span_s else 0.0,
        utilization=busy_s / (workers * last_s) if last_s else 0.0,
    )


def shares_of_demand(jobs: Sequence[SimJob]) -> dict[str, float]:
    """Each tenant's device time until the last arrival, as a share of what its jobs needed in all."""
    received = _received(jobs, {})
    needed: dict[str, float] = defaultdict(float)
    for job in jobs:
        needed[job.row.tenant] += job.device_s
    return {tenant: received[tenant] / needed[tenant] for tenant in sorted(needed) if needed[tenant]}


def _received(jobs: Sequence[SimJob], weights: Mapping[str, float]) -> dict[str, float]:
    """Device seconds over weight by tenant, of jobs that had ended when the last one arrived."""
    last_arrival_s = max((job.row.arrival_s for job in jobs), default=0.0)
    received: dict[str, float] = defaultdict(float)
    for job in jobs:
        in_time = job.end_s is not None and job.end_s <= last_arrival_s
        received[job.row.tenant] += job.device_s / weights.get(job.row.tenant, 1.0) if in_time else 0.0
    return received


def _waits(jobs: Iterable[SimJob]) -> list[float]:
    return [job.wait_s for job in jobs if job.wait_s is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _met(jobs: Sequence[SimJob]) -> float | None:
    return sum(job.met for job in jobs) / len(jobs) if jobs else None
