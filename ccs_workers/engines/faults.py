"""What a job is told of an error that its model raised, what is freed after it, and what leaves no engine to go on."""

from __future__ import annotations

import gc
import sys
import traceback
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


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory is used up, on a device or of the host."""
    # Known by name, so that this module needs no torch; the CPU's allocator has no exception of its own.
    return (
        isinstance(error, MemoryError | OutOfMemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY))
    )


def as_engine_error(error: BaseException | None, *, need_bytes: int | None = None) -> CcsError:
    """Return the error of the tree for whatever a model raised: its kind alone, never its text.

    The text could hold a piece of a prompt; it is only searched for what devices say. ``need_bytes`` is what the job
    needs beside its model, where that is known.
    """
    if isinstance(error, CcsError):
        return error
    if is_out_of_memory(error):
        told = "" if need_bytes is None else f", which needs {need_bytes} bytes beside its model"
        return OutOfMemoryError(f"the device's memory did not hold this job{told}")
    text = str(error).lower()
    if isinstance(error, RuntimeError) and any(words in text for words in _STICKY):
        return DeviceLostError("the device reported an error after which it can't be used any more")
    return EngineError(f"the model raised {type(error).__name__}")


def release(error: BaseException | None) -> None:
    """Let go of what an error that has been dealt with keeps alive: the frames that it went through.

    After one for memory, what becomes free by that is given back to the device, so that the next try finds it.
    """
    lacked_memory = is_out_of_memory(error)
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
    if lacked_memory:
        free_cache()


def free_cache() -> None:
    """Collect what nobody refers to, and give a CUDA device back what torch keeps for later."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
