"""The priority calculator: job to score, pure; lower is more urgent, one scale on every queue.

The script that publishes a job anchors its score by the broker's clock and its tenant's share, and nothing rewrites
it as time passes:

    score = rank_us + base + slack_us + floor(factor * (first_us + 5000))
    low   =           base            + floor(low_factor * (first_us + 5000))      once the job is relegated

``first_us`` is the device time until the job's first output, as the estimator expects it. What the other terms are is
the policy's (:mod:`ccs_broker.policy`). Under ``balanced``, the default:

* ``base`` is the job's tag of fair queueing, in microseconds of virtual device time. Virtual time V moves on by
  ``cost / w`` with every job that is claimed first, where w is the weight of all tenants that have jobs waiting. A
  tenant's next job of a class begins at ``S = max(V, F)`` and moves F on to ``S + cost / weight``.
* ``factor`` is kappa times a weight that grows with the class's target: of two jobs with the same base, the one with
  less work for its class goes first (the weighted shortest job), which is what lowers the mean wait the most.

What follows from it:

* Nobody starves. A job's score is finite and fixed, while every later job's is at least V: once V has passed the score,
  no job that comes later goes before it. V moves on with every claim, so what can overtake a job is bounded by
  ``factor * (first_us + 5000) * w`` of device time, also for a relegated job.
* A flood hurts its own tenant. Its n-th waiting job has a base ``n * cost / weight`` behind V; another tenant's next
  job begins at V. However a tenant spreads its jobs over ids, keys or connections, its F is one per class.
* Shares follow weights: of two tenants with jobs of one size always waiting, F moves on in proportion to 1 / weight,
  and claims take the lowest.

Scores are whole numbers below 2**53, which a double holds exactly; both this module and the scripts compute them in
doubles, so they agree to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ccs_broker.contract.words import Overload, QosClass
from ccs_broker.policy import BALANCED

if TYPE_CHECKING:
    from ccs_broker.policy import Policy

#: Distance between two QoS classes under a strict policy: longer than any difference inside one.
BAND_US: Final = 2_000_000_000_000_000
#: 2025-01-01; keeps scores small enough to be exact.
EPOCH_US: Final = 1_735_689_600_000_000
#: What every job costs beside its work: keeps jobs of no size at all from going before everything.
CONSTANT_US: Final = 5000
#: Part of its target that a job must have left when its first output comes, or it is late already.
LATE_MARGIN: Final = 0.05

_CLASSES: Final = tuple(QosClass)
#: Seconds in which a job of a class hopes for its first output, if it names no earlier deadline.
TARGETS_S: Final = (1.0, 5.0, 30.0, 600.0)
#: Celery's ``priority`` on Redis, 1 most urgent; see :func:`qos_of_celery_priority` for 0.
_CELERY_STEPS: Final = (
    (3, QosClass.REALTIME),
    (5, QosClass.INTERACTIVE),
    (7, QosClass.STANDARD),
    (9, QosClass.BATCH),
)
_LAST_STEP: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Device time of one job, in microseconds: until its first output, and all of it."""

    first_us: int
    cost_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """What the publishing script needs to compute a score, beside the work and the base."""

    #: Place of the QoS class, 0 for the most urgent.
    rank: int
    #: Microseconds from submission in which the first output is hoped for.
    target_us: int
    rank_us: int = 0
    slack_us: int = 0
    factor: float = 0.0
    low_factor: float = 0.0
    #: The job is relegated once it can't meet its target any more.
    relegates: bool = False


@lru_cache(maxsize=1024)
def urgency(
    qos: QosClass,
    deadline_s: float | None,
    *,
    policy: Policy = BALANCED,
    overload: Overload = Overload.RELEGATE,
) -> Urgency:
    """The terms of a job's score that don't depend on when it comes and how long it takes.

    Args:
        qos: the job's class.
        deadline_s: seconds from submission, or None.
        policy: the fleet's policy.
        overload: what becomes of the job once it can't meet its target.
    """
    rank = rank_of(qos)
    target_s = TARGETS_S[rank] if deadline_s is None else min(TARGETS_S[rank], deadline_s)
    target_us = int(target_s * 1_000_000)
    return Urgency(
        rank=rank,
        target_us=target_us,
        rank_us=rank * BAND_US if policy.strict else 0,
        slack_us=target_us if policy.by_target else 0,
        factor=policy.kappa * _weight(rank, target_s, policy),
        low_factor=policy.kappa * policy.relegated_weight,
        relegates=policy.relegates and overload is not Overload.ACCEPT,
    )


def score(urgent: Urgency, work: Work, base_us: int) -> int:
    """Score of a job that isn't relegated; ``base_us`` is its fair-share tag, or the clock since ``EPOCH_US``."""
    return urgent.rank_us + base_us + urgent.slack_us + _weighted(urgent.factor, work)


def relegated_score(urgent: Urgency, work: Work, base_us: int) -> int:
    """Score of a job once it is relegated."""
    return base_us + _weighted(urgent.low_factor, work)


def late_after_us(urgent: Urgency, work: Work) -> int:
    """Microseconds from submission after which the first output can't come in time any more; may be negative."""
    return urgent.target_us - work.first_us - int(LATE_MARGIN * urgent.target_us)


def rank_of(qos: QosClass) -> int:
    """Place of a class, 0 for the most urgent."""
    return _CLASSES.index(qos)


def qos_of_rank(rank: int) -> QosClass:
    """Inverse of :func:`rank_of`."""
    return _CLASSES[rank]


def qos_of_celery_priority(priority: object) -> QosClass:
    """Map a Celery ``priority`` to a class: 1-3 realtime, 4-5 interactive, 6-7 standard, 8-9 batch.

    Kombu writes 0 where a producer gave none, so 0 can't mean "most urgent" here: it is ``standard``, in the
    middle, like any value outside the scale.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= _LAST_STEP:
        return QosClass.STANDARD
    return next(qos for last, qos in _CELERY_STEPS if priority <= last)


def _weighted(factor: float, work: Work) -> int:
    return math.floor(factor * (work.first_us + CONSTANT_US))


def _weight(rank: int, target_s: float, policy: Policy) -> float:
    """The class's weight; with an earlier target it nears that of the class above, by the targets' logarithms."""
    weight = policy.weights[rank]
    if rank == 0 or target_s >= TARGETS_S[rank]:
        return weight
    way = math.log(TARGETS_S[rank] / target_s) / math.log(TARGETS_S[rank] / TARGETS_S[rank - 1])
    return weight + (policy.weights[rank - 1] - weight) * min(1.0, way)
