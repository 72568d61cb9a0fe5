"""Events: the entries of a job's stream, numbered without gaps from 1."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ccs_broker.contract.words import WIRE_VERSION


class EventKind(StrEnum):
    """What happened; the last five end the stream, and exactly one of them does."""

    QUEUED = "queued"
    STARTED = "started"
    DELTA = "delta"
    PROGRESS = "progress"
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"

    @property
    def terminal(self) -> bool:
        """True for the kinds that end a stream."""
        return self in TERMINAL_KINDS


DELTA: Final = EventKind.DELTA
PROGRESS: Final = EventKind.PROGRESS
TERMINAL_KINDS: Final = frozenset(
    {
        EventKind.SUCCEEDED,
        EventKind.FAILED,
        EventKind.CANCELLED,
        EventKind.EXPIRED,
        EventKind.QUARANTINED,
    }
)


class Event(BaseModel):
    """One entry of a job's stream; the texts of the deltas joined are the outcome's text."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)

    v: int = Field(default=WIRE_VERSION, ge=1, le=WIRE_VERSION)
    job: str
    #: 1, 2, 3, ... without gaps.
    seq: int = Field(ge=1)
    kind: EventKind
    #: Of a pipeline's stream: the step that it is an event of; None: of the pipeline as a whole.
    step: str | None = None
    #: Number of the claim that wrote it; 0 before the first.
    attempt: int = Field(default=0, ge=0)
    #: Broker time in milliseconds since 1970.
    at_ms: int = Field(default=0, ge=0)
    #: Text of a delta, else empty.
    text: str = ""
    #: What else the kind carries: labels, window numbers, an error's code and message.
    data: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        """True if nothing follows."""
        return self.kind in TERMINAL_KINDS
