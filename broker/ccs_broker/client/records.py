"""What a client tells about jobs, queues and workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ccs_broker.contract.outcome import OutcomeState

if TYPE_CHECKING:
    from collections.abc import Mapping


class JobState(StrEnum):
    """Where a job is; the last five are its ends."""

    WAITING = "waiting"
    #: Not due yet.
    DELAYED = "delayed"
    RUNNING = "running"
    #: Running, and told to stop at its next step.
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"

    @property
    def terminal(self) -> bool:
        """True if the job has ended."""
        return self.value in _ENDS


_ENDS = frozenset(state.value for state in OutcomeState)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One look at a job; times are the broker's, in ms since 1970, None where it didn't come to that."""

    id: str
    state: JobState
    queue: str
    #: Number of times it has been claimed.
    attempt: int = 0
    #: Jobs before it in its queue; None unless it waits.
    position: int | None = None
    worker: str | None = None
    #: Alias of the model asked for, or after the end of the one that served.
    model: str | None = None
    #: Number of the last event in its stream.
    events: int = 0
    submitted_ms: int
    started_ms: int | None = None
    first_output_ms: int | None = None
    finished_ms: int | None = None
    #: When the job expires if it hasn't ended.
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """One queue."""

    name: str
    waiting: int
    running: int
    #: Tickets on its list, one per waiting job but for moments.
    tickets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """All queues; what is delayed is counted together."""

    queues: tuple[QueueDepth, ...]
    delayed: int

    @property
    def waiting(self) -> int:
        """Jobs that wait, in all queues."""
        return sum(queue.waiting for queue in self.queues)

    @property
    def running(self) -> int:
        """Jobs under a lease, of all queues."""
        return sum(queue.running for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A live worker and what it reported about itself last."""

    name: str
    #: Seconds for which it counts as alive without another report.
    alive_for_s: float
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """``loading``, ``ready``, ``draining`` or ``stalled``; ``?`` if its report doesn't say."""
        return str(self.report.get("state", "?"))
