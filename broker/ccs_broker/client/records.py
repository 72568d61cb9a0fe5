"""What a client tells about jobs, queues and workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ccs_broker.contract.outcome import OutcomeState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccs_broker.contract.words import QosClass


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
    #: Its class, as it was submitted or changed to.
    qos: QosClass | None = None
    #: It can't meet its target any more, and runs on leftover capacity.
    relegated: bool = False
    #: Jobs before it in its queue; None unless it waits.
    position: int | None = None
    #: Predicted seconds until it starts; None unless it waits.
    estimate_s: float | None = None
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
    #: Of those that wait, the ones that can't meet their target any more.
    relegated: int = 0


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
class TenantShare:
    """A tenant that has jobs waiting, or a weight of its own."""

    name: str
    #: Share of the device time inside a class, against other tenants' weights; 1 where nothing was set.
    weight: float
    waiting: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """A quarantined job whose payload is still kept; nothing here comes from its prompt."""

    id: str
    #: When it was quarantined, in ms since 1970 by the broker's clock.
    at_ms: int
    modality: str
    #: Alias of the model asked for; None: the modality's default.
    model: str | None
    #: Empty for a job that was refused when it came in.
    tenant: str
    #: Code and message of the error it was quarantined with.
    code: str
    message: str
    attempts: int
    #: Id of the job that ran its payload again, or None.
    replayed_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that could not be understood, without its bytes."""

    #: Place in the list, 0 for the oldest: one that comes later changes no index.
    index: int
    queue: str
    reason: str
    #: Bytes of the whole message, of which only the first are kept.
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadReport:
    """Quarantined jobs and dead letters, the newest first."""

    jobs: tuple[DeadJob, ...]
    letters: tuple[DeadLetter, ...]
    #: Older ones beyond the limit of the listing.
    more_jobs: int = 0
    more_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJobDetails:
    """All that is known of a quarantined job; the payload only where it was asked for."""

    job: DeadJob
    qos: str
    submitted_ms: int
    started_ms: int | None
    worker: str | None
    #: Workers that were lost under it; engines that died under it, in all without progress, and while it ran alone.
    losses: int
    crashes: int
    crashes_alone: int
    text_chars: int
    media: int
    media_bytes: int
    #: The job as it was submitted, prompt included.
    payload: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterDetails:
    """A dead letter; its bytes only where they were asked for."""

    letter: DeadLetter
    #: Bytes that were kept of it.
    kept_bytes: int
    raw: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How much a purge has dropped."""

    jobs: int
    letters: int
