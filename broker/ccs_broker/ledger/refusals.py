"""What a refusal for want of room or time means to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker.errors import CcsError, DeadlineUnreachableError, QueueFullError
from ccs_broker.ledger.records import PublishStatus

if TYPE_CHECKING:
    from ccs_broker.ledger.records import Entry, Published


def overload_error(entry: Entry, published: Published) -> CcsError | None:
    """The error of a queue that is full or a time that can't be kept; None for any other status."""
    if published.status is PublishStatus.FULL:
        return QueueFullError(f"{published.id} jobs wait on {entry.queue} already; try again later")
    if published.status is not PublishStatus.UNREACHABLE:
        return None
    which, _, seconds = published.id.partition(" ")
    if which == "first":
        what = f"its first output after {seconds} s, its target is {entry.urgency.target_us / 1e6:g} s"
    else:
        what = f"its end after {seconds} s, its deadline is {entry.expire_ms / 1000:g} s"
    return DeadlineUnreachableError(
        f"the job can't be done in time: predicted is {what}", predicted_s=float(seconds)
    )
