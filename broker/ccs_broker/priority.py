"""The priority calculator: job to score, pure; lower is more urgent, one scale on every queue.

The score is anchored by the broker's clock inside the publishing script, so no producer's clock counts:

    score = rank * BAND_US + (now_us - EPOCH_US) + slack_us

``rank`` orders the QoS classes strictly; inside a class the job whose target comes first goes first. The target
is the job's deadline, or the class's own where it names none or a later one. With equal targets it is first come,
first served. Scores stay whole numbers below 2**53, so a double holds them exactly until 2088.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ccs_broker.contract.words import QosClass

#: Distance between two QoS classes: longer than any difference inside one.
BAND_US: Final = 2_000_000_000_000_000
#: 2025-01-01; keeps scores small enough to be exact.
EPOCH_US: Final = 1_735_689_600_000_000

_RANK: Final = {
    QosClass.REALTIME: 0,
    QosClass.INTERACTIVE: 1,
    QosClass.STANDARD: 2,
    QosClass.BATCH: 3,
}
#: Seconds in which a job of the class hopes for its first output, if it names no deadline.
_TARGET_S: Final = {
    QosClass.REALTIME: 1.0,
    QosClass.INTERACTIVE: 5.0,
    QosClass.STANDARD: 30.0,
    QosClass.BATCH: 600.0,
}
#: Celery's ``priority`` on Redis, 1 most urgent; see :func:`qos_of_celery_priority` for 0.
_CELERY_STEPS: Final = (
    (3, QosClass.REALTIME),
    (5, QosClass.INTERACTIVE),
    (7, QosClass.STANDARD),
    (9, QosClass.BATCH),
)
_LAST_STEP: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """What the publishing script needs to compute a score."""

    rank: int
    slack_us: int


def urgency(qos: QosClass, deadline_s: float | None) -> Urgency:
    """Rank and slack of a job.

    Args:
        qos: the job's class.
        deadline_s: seconds from submission, or None.
    """
    target_s = _TARGET_S[qos] if deadline_s is None else min(_TARGET_S[qos], deadline_s)
    return Urgency(rank=_RANK[qos], slack_us=int(target_s * 1_000_000))


def qos_of_celery_priority(priority: object) -> QosClass:
    """Map a Celery ``priority`` to a class: 1-3 realtime, 4-5 interactive, 6-7 standard, 8-9 batch.

    Kombu writes 0 where a producer gave none, so 0 can't mean "most urgent" here: it is ``standard``, in the
    middle, like any value outside the scale.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= _LAST_STEP:
        return QosClass.STANDARD
    return next(qos for last, qos in _CELERY_STEPS if priority <= last)
