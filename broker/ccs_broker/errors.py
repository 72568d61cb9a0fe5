"""Every error a caller, a worker or the command line can meet, as one tree.

    CcsError
    ├── InvalidInputError            INVALID_INPUT         the job itself is wrong; repeating it can't help
    │   ├── PayloadTooLargeError     PAYLOAD_TOO_LARGE     a text or a file is over its limit
    │   ├── UnsupportedMediaError    UNSUPPORTED_MEDIA     a kind of file or reference that isn't served
    │   ├── InvalidImageError        INVALID_IMAGE         bytes that aren't a whole, sane picture
    │   ├── InvalidAudioError        INVALID_AUDIO         bytes that aren't whole, sane sound
    │   ├── AudioTooLongError        AUDIO_TOO_LONG        more seconds than the model file allows
    │   └── ContextTooLongError      CONTEXT_TOO_LONG      prompt and new tokens exceed the model's context
    ├── NotFoundError                NOT_FOUND             no such job (or its record has expired)
    ├── StreamExpiredError           STREAM_EXPIRED        the event log is gone; the outcome may remain
    ├── ConflictError                CONFLICT              an idempotency key was used with another body
    ├── WaitTimeoutError             TIMEOUT               nothing came in time; the job goes on
    ├── DeadlineExceededError        DEADLINE_EXCEEDED     the job's own deadline or lifetime has passed
    │   └── RuntimeExceededError     RUNTIME_EXCEEDED      the job ran longer than its max_runtime_s
    ├── QueueUnavailableError        QUEUE_UNAVAILABLE     the server can't be reached or refuses writes
    │   └── QueueFullError           QUEUE_FULL            the queue's bound is reached, or the server's memory used up
    ├── DeadlineUnreachableError     DEADLINE_UNREACHABLE  it can't be done in time, and wished to be refused then
    ├── NoSuitableWorkerError        NO_SUITABLE_WORKER    no worker serves this modality or model
    ├── EngineError                  ENGINE_FAILED         the model raised; its text stays in the worker's log
    │   ├── EngineLostError          ENGINE_LOST           the engine process died under the job
    │   ├── DeviceLostError          DEVICE_LOST           the device's context is gone; its engine is replaced
    │   └── OutOfMemoryError         OUT_OF_MEMORY         the device could not hold the job
    ├── WorkerLostError              WORKER_LOST           the job's workers died, time and again
    ├── InternalError                INTERNAL              a fault of ours; never the caller's
    ├── LeaseLostError               LEASE_LOST            another attempt holds the job now
    ├── JobFailedError               (the job's own code)  raised where a failed job must raise, as in a chain
    └── ConfigurationError           CONFIGURATION         a setting or the model file is wrong
        └── SetupError               CONFIGURATION         something that must be there first couldn't be got or made

A message holds numbers, names and limits, never a piece of a prompt or of media.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ccs_broker.contract.outcome import Outcome

__all__ = [
    "AudioTooLongError",
    "CcsError",
    "ConfigurationError",
    "ConflictError",
    "ContextTooLongError",
    "DeadlineExceededError",
    "DeadlineUnreachableError",
    "DeviceLostError",
    "EngineError",
    "EngineLostError",
    "InternalError",
    "InvalidAudioError",
    "InvalidImageError",
    "InvalidInputError",
    "JobFailedError",
    "LeaseLostError",
    "NoSuitableWorkerError",
    "NotFoundError",
    "OutOfMemoryError",
    "PayloadTooLargeError",
    "QueueFullError",
    "QueueUnavailableError",
    "RuntimeExceededError",
    "SetupError",
    "StreamExpiredError",
    "UnsupportedMediaError",
    "WaitTimeoutError",
    "WorkerLostError",
    "error_for_code",
]


class CcsError(Exception):
    """Base of the tree: a stable ``code``, a safe message, and whether repeating can help."""

    code: ClassVar[str] = "ERROR"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class InvalidInputError(CcsError):
    """The job itself is wrong; repeating it can't help."""

    code = "INVALID_INPUT"


class PayloadTooLargeError(InvalidInputError):
    """A text or a file is over its limit; the message names the limit."""

    code = "PAYLOAD_TOO_LARGE"


class UnsupportedMediaError(InvalidInputError):
    """A kind of file or reference that isn't served."""

    code = "UNSUPPORTED_MEDIA"


class InvalidImageError(InvalidInputError):
    """Bytes that aren't a whole, sane picture."""

    code = "INVALID_IMAGE"


class InvalidAudioError(InvalidInputError):
    """Bytes that aren't whole, sane sound."""

    code = "INVALID_AUDIO"


class AudioTooLongError(InvalidInputError):
    """More seconds of sound than the model file allows."""

    code = "AUDIO_TOO_LONG"


class ContextTooLongError(InvalidInputError):
    """Prompt and requested tokens exceed the model's context; the message holds the numbers."""

    code = "CONTEXT_TOO_LONG"


class NotFoundError(CcsError):
    """No such job, or its record has expired."""

    code = "NOT_FOUND"


class StreamExpiredError(CcsError):
    """The event log is gone; ``outcome`` holds the stored outcome where there still is one."""

    code = "STREAM_EXPIRED"

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class ConflictError(CcsError):
    """An idempotency key was used before with another body."""

    code = "CONFLICT"


class WaitTimeoutError(CcsError):
    """Nothing came in time; the job itself goes on."""

    code = "TIMEOUT"
    retryable = True


class DeadlineExceededError(CcsError):
    """The job's own deadline or its longest lifetime has passed."""

    code = "DEADLINE_EXCEEDED"


class RuntimeExceededError(DeadlineExceededError):
    """The job ran longer than its ``max_runtime_s``."""

    code = "RUNTIME_EXCEEDED"


class QueueUnavailableError(CcsError):
    """The server can't be reached or refuses writes.

    ``maybe_accepted`` is true when the request had been sent and only its reply is missing.
    """

    code = "QUEUE_UNAVAILABLE"
    retryable = True

    def __init__(self, message: str, *, maybe_accepted: bool = False) -> None:
        super().__init__(message)
        self.maybe_accepted = maybe_accepted


class QueueFullError(QueueUnavailableError):
    """As many jobs wait as may, or the server's memory is used up; nothing was accepted."""

    code = "QUEUE_FULL"


class DeadlineUnreachableError(CcsError):
    """The job can't be done in time, and wished to be refused then; nothing was accepted.

    ``predicted_s`` is when, in seconds from the submission, what is asked for would have come: the first output
    where that misses its target, else the end.
    """

    code = "DEADLINE_UNREACHABLE"
    retryable = True

    def __init__(self, message: str, predicted_s: float | None = None) -> None:
        super().__init__(message)
        self.predicted_s = predicted_s


class NoSuitableWorkerError(CcsError):
    """No worker serves this modality or model."""

    code = "NO_SUITABLE_WORKER"


class EngineError(CcsError):
    """The model raised; details stay in the worker's log."""

    code = "ENGINE_FAILED"
    retryable = True


class EngineLostError(EngineError):
    """The engine process died under the job."""

    code = "ENGINE_LOST"


class DeviceLostError(EngineError):
    """The device's context is gone; the engine process ends with it and is replaced."""

    code = "DEVICE_LOST"


class OutOfMemoryError(EngineError):
    """The device could not hold the job."""

    code = "OUT_OF_MEMORY"


class WorkerLostError(CcsError):
    """The job's workers died, time and again."""

    code = "WORKER_LOST"
    retryable = True


class InternalError(CcsError):
    """A fault of ours; never the caller's."""

    code = "INTERNAL"
    retryable = True


class LeaseLostError(CcsError):
    """Another attempt holds the job now; whoever sees this must stop working on it."""

    code = "LEASE_LOST"


class JobFailedError(CcsError):
    """Carries a job's own error through machinery that knows only exceptions (a chain, a chord)."""

    code = "JOB_FAILED"

    def __str__(self) -> str:
        return self.message


class ConfigurationError(CcsError):
    """A setting or the model file is wrong; the message names the file, the key and what to do."""

    code = "CONFIGURATION"


class SetupError(ConfigurationError):
    """Nothing that was said is wrong, but a library is missing, or a model could not be fetched or made."""


def _walk(cls: type[CcsError]) -> list[type[CcsError]]:
    return [cls, *(deep for child in cls.__subclasses__() for deep in _walk(child))]


def error_for_code(code: str, message: str) -> CcsError:
    """Build the error of the tree that has ``code``; an unknown code gives an ``InternalError``."""
    for cls in _walk(CcsError):
        if cls.code == code:
            return cls(message)
    return InternalError(f"{code}: {message}")
