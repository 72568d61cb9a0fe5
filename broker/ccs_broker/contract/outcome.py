"""The outcome: how a job ended, once and for all."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ccs_broker.contract.words import WIRE_VERSION
from ccs_broker.errors import CcsError, error_for_code


class OutcomeState(StrEnum):
    """The five ends of a job; each is also the kind of its terminal event."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class ErrorInfo(_Frozen):
    """An error as plain data: readable without any class of ours."""

    code: str
    message: str
    retryable: bool = False

    @classmethod
    def of(cls, error: CcsError) -> ErrorInfo:
        """Take code, safe message and retryability from an error of the tree."""
        return cls(code=error.code, message=error.message, retryable=error.retryable)

    def to_error(self) -> CcsError:
        """Rebuild the error of the tree."""
        return error_for_code(self.code, self.message)


class Usage(_Frozen):
    """What the job consumed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    images: int = 0
    audio_s: float = 0.0
    #: Seconds of the device that went to this job, of time shared with others its part; None where nobody measured.
    device_s: float | None = None


class Timings(_Frozen):
    """Seconds since submission, by the broker's clock; None where it didn't come to that."""

    started_s: float | None = None
    first_output_s: float | None = None
    finished_s: float | None = None


class Outcome(_Frozen):
    """How a job ended; ``text`` equals its deltas joined, byte for byte, also when it failed midway."""

    v: int = Field(default=WIRE_VERSION, ge=1, le=WIRE_VERSION)
    state: OutcomeState
    text: str = ""
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    timings: Timings = Timings()
    attempts: int = 0
    model: str | None = None
    worker: str | None = None
    #: Why text ended: ``stop``, ``length``, ``end``; None where nothing was generated.
    finish_reason: str | None = None
    #: What else the model found: labels, lines, ``no_speech``, the seed drawn.
    data: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if the job succeeded."""
        return self.state is OutcomeState.SUCCEEDED
