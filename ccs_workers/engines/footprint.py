"""What this process holds of its device's memory, now and at its peak; and giving back what it doesn't need.

On a CPU that is its resident memory, mapped files included. On CUDA it is what torch has reserved and, beyond that,
what NVML says of this process: the context, libraries and kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ccs_workers.engines.protocol import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CUDA_CONTEXT_BYTES",
    "KEPT_BYTES",
    "Footprint",
    "Lap",
    "footprint_of",
    "give_back",
    "map_large_blocks",
]

#: What CUDA's context, libraries and kernels take, where NVML doesn't tell it of this process.
CUDA_CONTEXT_BYTES: Final = 600 * 2**20
_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
#: Written there it begins a new peak of resident memory.
_NEW_PEAK: Final = "5"
#: Where the kernel can't do that, the peak is the highest of samples this far apart.
_SAMPLE_S: Final = 0.02
#: Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAP_FROM_BYTES = 4 * 2**20
_TRIM_FROM_BYTES: Final = 16 * 2**20
#: What malloc keeps of smaller blocks for later, in the heaps of the threads that read, step and write.
KEPT_BYTES: Final = 3 * _TRIM_FROM_BYTES


@dataclass(slots=True, eq=False)
class Lap:
    """The highest use between two moments; final when they have passed."""

    peak_bytes: int = 0


class Footprint:
    """Measures this process on one device; get it from :func:`footprint_of`, as peaks begin anew for all readers."""

    def __init__(self, meter: Callable[[], MemoryUse]) -> None:
        """``meter`` tells the use now and its peak since it was last asked."""
        self._meter = meter
        self._lock = threading.Lock()
        self._told = Lap()
        self._laps = [self._told]

    def use(self) -> MemoryUse:
        """The use now, and its peak since this was last asked."""
        with self._lock:
            use = self._measure()
            peak_bytes, self._told.peak_bytes = self._told.peak_bytes, use.used_bytes
        return replace(use, peak_bytes=peak_bytes)

    @contextmanager
    def lap(self) -> Iterator[Lap]:
        """Measure the peak of what happens within."""
        lap = Lap()
        with self._lock:
            lap.peak_bytes = self._measure().used_bytes
            self._laps.append(lap)
        try:
            yield lap
        finally:
            with self._lock:
                self._measure()
                self._laps.remove(lap)

    def _measure(self) -> MemoryUse:
        use = self._meter()
        for lap in self._laps:
            lap.peak_bytes = max(lap.peak_bytes, use.peak_bytes)
        return use


def footprint_of(device: str) -> Footprint:
    """What measures this process on a device as torch calls it: ``cuda:1``; any that isn't CUDA's is the CPU."""
    kind, _, index = device.partition(":")
    return _footprint(int(index or 0) if kind == "cuda" else None)


@cache
def _footprint(cuda_index: int | None) -> Footprint:
    return Footprint(_cpu_meter() if cuda_index is None else _CudaMeter(cuda_index))


def give_back() -> None:
    """Return memory that was freed to the system; cheap, but not for every step."""
    gc.collect()
    # Only glibc has it, and only glibc needs it.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks() -> None:
    """Let large blocks go back to the system when they are freed, where malloc would keep up to 64 MB of each heap.

    For engines whose jobs hold large blocks of their own, pictures between activations, and for workers, which pass
    them on. It costs page faults.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MAP_FROM_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_FROM_BYTES)


def _cpu_meter() -> Callable[[], MemoryUse]:
    try:
        _kernel_meter()
    except (OSError, KeyError):
        return _Samples()
    return _kernel_meter


def _kernel_meter() -> MemoryUse:
    """Resident memory and its peak, of which the kernel begins a new one.

    Raises:
        OSError, KeyError: it doesn't tell, or a container hides it.
    """
    lines = (line.partition(":") for line in _STATUS.read_text(encoding="ascii").splitlines())
    sizes = {name: rest for name, _, rest in lines if name in {"VmRSS", "VmHWM"}}
    used, peak = (int(sizes[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    _CLEAR.write_text(_NEW_PEAK, encoding="ascii")
    return MemoryUse(used_bytes=used, peak_bytes=peak, allocated_bytes=used, reserved_bytes=used)


class _Samples:
    """Samples resident memory from a thread of its own."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._peak = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="ccs-footprint", daemon=True).start()

    def __call__(self) -> MemoryUse:
        used: int = self._process.memory_info().rss
        with self._lock:
            peak, self._peak = max(used, self._peak), 0
        return MemoryUse(used_bytes=used, peak_bytes=peak, allocated_bytes=used, reserved_bytes=used)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(_SAMPLE_S):
            used: int = self._process.memory_info().rss
            with self._lock:
                self._peak = max(self._peak, used)


class _CudaMeter:
    """Torch's own numbers, and what is beyond its knowledge."""

    def __init__(self, index: int) -> None:
        # Whoever names a CUDA device has imported it; nothing else in here needs it.
        import torch

        from ccs_workers.devices import find_device

        self._torch = torch.cuda
        self._index = index
        self._device = find_device(f"cuda:{index}")

    def __call__(self) -> MemoryUse:
        reserved = self._torch.memory_reserved(self._index)
        peak = self._torch.max_memory_reserved(self._index)
        allocated = self._torch.memory_allocated(self._index)
        self._torch.reset_peak_memory_stats(self._index)
        pid = os.getpid()
        whole = self._device.read([pid]).by_pid.get(pid)
        beyond = CUDA_CONTEXT_BYTES if whole is None else max(0, whole - reserved)
        return MemoryUse(
            used_bytes=reserved + beyond,
            peak_bytes=peak + beyond,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
        )
