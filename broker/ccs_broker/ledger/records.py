"""Records that pass between the ledger and its callers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from operator import mul
from typing import TYPE_CHECKING, Literal

from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.contract.words import Overload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_broker.contract.event import EventKind
    from ccs_broker.contract.outcome import OutcomeState
    from ccs_broker.priority import Urgency, Work

#: What a script tells a worker about an attempt it runs.
AttemptState = Literal["ok", "lost", "cancelling", "expired"]
#: How far a cancel reaches: to any job, to one that doesn't run (it may have yet to be published), or only to one
#: that waits.
CancelReach = Literal["any", "unstarted", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a job's work and memory depend on, as far as it is known at submission."""

    prompt_chars: int = 0
    #: Most new tokens.
    new_tokens: int = 0
    images: int = 0
    #: Bytes of its pictures and sounds as they are encoded.
    media_bytes: int = 0

    def values(self) -> tuple[int, int, int, int]:
        """The four numbers, in the order of every set of coefficients."""
        return self.prompt_chars, self.new_tokens, self.images, self.media_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """Of which pipeline a job is a step."""

    pipeline: str
    name: str
    #: What becomes of the pipeline if it doesn't succeed: ``fail``, ``skip`` or ``default``.
    on_failure: str = "fail"
    #: It needs the text of a step that was skipped, and so ends without having begun.
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What begins a pipeline."""

    id: str
    expire_ms: int
    #: Place of its class, 0 to 3.
    rank: int
    tenant: str
    blobs: tuple[str, ...]
    #: The step whose text is the pipeline's.
    output: str
    #: Names of all steps.
    steps: tuple[str, ...]
    #: Whole Redis key of an idempotent submission, and the digest of its body.
    idempotency: str = ""
    digest: str = ""
    #: Further fields of the record, such as ``spec:<step>``; see ``lua/lib_pipeline.lua``.
    fields: Mapping[str, str | bytes]


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
    sizes: Sizes = Sizes()
    tenant: str = "default"
    overload: Overload = Overload.RELEGATE
    #: Service times, where they are known; None: the script expects what was learnt of jobs of these sizes.
    work: Work | None = None
    step: StepPlace | None = None
    #: Celery has something to do after it; told for steps only.
    linked: bool = False


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
    #: As many jobs wait in the queue as may; the detail is their number.
    FULL = "full"
    #: It can't be done in time, and wished to be refused then; the detail is the predicted time in seconds.
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Published:
    """Status, and the id of the job (or what was missing, or the number that the status speaks of)."""

    status: PublishStatus
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Memory that some kinds of jobs share."""

    free_bytes: int
    #: Free and used together.
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a kind of job needs of a pool, as a linear function of its sizes."""

    #: Bytes per unit of 1, prompt characters, new tokens, images and media bytes.
    coefficients: tuple[float, float, float, float, float]
    #: Index of the pool.
    pool: int = 0

    def bytes_for(self, sizes: Sequence[int]) -> int:
        """What a job of these sizes needs; see ``Sizes.values``."""
        need: float = sum(map(mul, self.coefficients, (1, *sizes)))
        return math.ceil(need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory that a worker may still give to jobs."""

    #: At least one.
    pools: tuple[Pool, ...]
    #: By queue and model alias ("" for jobs that name none); None where such jobs can't be taken now. A pair that
    #: isn't there needs nothing.
    need: Mapping[tuple[str, str], Need | None]


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
    #: None: memory is no bound.
    room: Room | None = None
    #: Woken by a nudge: no ticket was popped, the script takes one off the list itself.
    nudged: bool = False


class NoClaim(StrEnum):
    """Why a ticket gave no claim."""

    #: Nothing waits: the ticket is spent.
    NONE = "none"
    #: Jobs wait, none that fits this worker: the ticket has gone back.
    NO_ROOM = "noroom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """The best waiting job that would run here if there were memory for it."""

    id: str
    #: 0 to 3 by class, 4 if it is relegated.
    rank: int
    score: int
    need_bytes: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """A ticket that gave no claim."""

    reason: NoClaim
    blocked: Blocked | None = None


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
    #: Its score, low first: engines may order their jobs by it. A relegated one's is the low one.
    score: int = 0
    #: Expected device time until its first output, and all of it.
    first_us: int = 0
    cost_us: int = 0
    #: Place of its class, 0 to 3.
    rank: int = 2
    relegated: bool = False
    #: Taken in the turn of batch and relegated jobs, ahead of better scores.
    floor: bool = False
    #: How often a more urgent job has taken its place.
    preempted: int = 0
    #: What follows it in Celery does so however it ends: a step that its pipeline can do without.
    goes_on: bool = False


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
    #: Device time the job really took, where it was measured; settles its tenant's account.
    actual_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """How many ids one sweep moved: waiting again, quarantined, due, expired; and tickets made good."""

    requeued: int
    lost: int
    promoted: int
    expired: int
    tickets: int
