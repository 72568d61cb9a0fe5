"""What a job is told of an error that its model raised, and which errors leave no engine to go on with."""

from __future__ import annotations

from typing import Final

from ccs_broker.errors import CcsError, DeviceLostError, EngineError, OutOfMemoryError

#: Exit status of an engine process whose device can't be used any more.
EXIT_BROKEN: Final = 70
#: Pieces of what CUDA and its libraries say when the context is lost: every later call fails as well.
_STICKY: Final = (
    "cuda error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "cublas_status_",
    "cudnn_status_",
    "nccl error",
)
_MEMORY: Final = ("out of memory", "allocate memory")


def as_engine_error(error: BaseException | None) -> CcsError:
    """Return the error of the tree for whatever a model raised: its kind alone, never its text.

    The text could hold a piece of a prompt; it is only searched for what devices say.
    """
    if isinstance(error, CcsError):
        return error
    text = str(error).lower()
    # Known by name, so that this module needs no torch; the CPU's allocator has no exception of its own.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in text for words in _MEMORY))
    ):
        return OutOfMemoryError("the device's memory did not hold this job")
    if isinstance(error, RuntimeError) and any(words in text for words in _STICKY):
        return DeviceLostError("the device reported an error after which it can't be used any more")
    return EngineError(f"the model raised {type(error).__name__}")
