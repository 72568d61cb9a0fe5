"""Records that pass between the ledger and its callers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from ccs_broker.contract.limits import MAX_LIFETIME_S

if TYPE_CHECKING:
    from ccs_broker.contract.event import EventKind
    from ccs_broker.contract.outcome import OutcomeState
    from ccs_broker.priority import Urgency

#: What a script tells a worker about an attempt it runs.
AttemptState = Literal["ok", "lost", "cancelling", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What publishing puts into the ledger: a prompt job, or a plain Celery task on one of our queues."""

    id: str
    queue: str
    urgency: Urgency
    kind: Literal["job", "task"] = "job"
    #: Celery message as JSON; empty for jobs of our own client, whose message the worker makes up.
    message: bytes = b""
    #: The job as JSON; empty for a task.
    payload: bytes = b""
    delay_ms: int = 0
    #: Milliseconds from now until the deadline, or the longest lifetime.
    expire_ms: int = int(MAX_LIFETIME_S * 1000)
    model: str = ""
    modality: str = ""
    blobs: tuple[str, ...] = ()
    #: Store a Celery result with the outcome.
    celery: bool = False
    #: Whole Redis key of an idempotent submission, and the digest of its body.
    idempotency: str = ""
    digest: str = ""
    #: List and raw bytes of a foreign message that is taken in.
    source: str = ""
    raw: bytes = b""


class PublishStatus(StrEnum):
    """How publishing went."""

    OK = "ok"
    #: The id, or the idempotency key with this body, is known already; nothing was changed.
    SAME = "same"
    CONFLICT = "conflict"
    #: Workers serve this modality, none of them this model.
    NO_MODEL = "nomodel"
    #: A medium isn't in the blob store.
    NO_BLOB = "noblob"
    #: Somebody else has taken the foreign message in.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Published:
    """Status, and the id of the job (or what was missing)."""

    status: PublishStatus
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWish:
    """What a worker offers to take."""

    #: Queue whose ticket was popped.
    popped: str
    #: Queues with room.
    queues: tuple[str, ...]
    worker: str
    #: Aliases served; empty: any.
    models: tuple[str, ...] = ()


class NoClaim(StrEnum):
    """Why a ticket gave no claim."""

    #: Nothing waits: the ticket is spent.
    NONE = "none"
    #: Jobs wait, none that fits this worker: the ticket has gone back.
    NO_ROOM = "noroom"


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """A ticket that gave no claim."""

    reason: NoClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One job taken under a lease; ``attempt`` is the fencing token of everything done for it."""

    id: str
    attempt: int
    queue: str
    message: bytes
    payload: bytes
    #: Number of the last event in its log.
    seq: int
    submitted_ms: int
    expire_ms: int
    #: The job has its outcome, which is then the payload; only what follows it in Celery is left to do.
    links: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One event to be appended; ``data`` is JSON of an object or empty."""

    kind: EventKind
    text: str = ""
    data: str = ""
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the finish script writes."""

    state: OutcomeState
    #: Outcome JSON without timings; the scripts keep the times.
    outcome: str
    #: Data of the terminal event, JSON of an object or empty.
    event_data: str = ""
    #: Celery's result as JSON or empty.
    celery: str = ""
    #: Celery has something to do after the outcome: the lease goes on until the ack.
    links: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """How many ids one sweep moved: waiting again, quarantined, due, expired; and tickets made good."""

    requeued: int
    lost: int
    promoted: int
    expired: int
    tickets: int
