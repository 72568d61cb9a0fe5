"""A CUDA device, whole or a MIG instance, known by its UUID; its memory is what NVML says."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ccs_workers.devices.device import Reading
from ccs_workers.devices.nvml import NvmlError

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccs_workers.devices.nvml import Nvml

__all__ = ["CudaDevice", "UnmeasuredDevice"]

#: The kernel's fixed number of the first process namespace, in which NVML counts processes.
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
_LISTS: Final = tuple(
    (f"nvmlDeviceGet{kind}RunningProcesses", f"nvmlDeviceGet{kind}RunningProcesses_v2")
    for kind in ("Compute", "MPSCompute", "Graphics")
)
#: No device has as much; NVML's "not available" is a number of this size.
_ABSURD_BYTES: Final = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """A device that NVML lists. The engine process sees it alone, so it is ``cuda:0`` there."""

    uuid: str
    nvml: Nvml
    root: Path = Path("/")
    name: str = "cuda:0"
    kind: Literal["cpu", "cuda"] = "cuda"

    @property
    def visible(self) -> str:
        """The UUID: CUDA and NVML may count differently, but this means the same to both."""
        return self.uuid

    def read(self, own_pids: Collection[int] = ()) -> Reading:
        """Ask NVML; a call that fails leaves its part unknown."""
        try:
            handle = self.nvml.call("nvmlDeviceGetHandleByUUID", self.uuid)
            total, used = _memory(self.nvml, handle)
        except NvmlError as error:
            return Reading(total_bytes=None, used_bytes=None, others_bytes=None, reason=str(error))
        if not own_pids:
            return Reading(total_bytes=total, used_bytes=used, others_bytes=used)
        by_pid, reason = self._own(handle, set(own_pids))
        return Reading(
            total_bytes=total,
            used_bytes=used,
            others_bytes=None if reason else max(0, used - sum(by_pid.values())),
            by_pid=by_pid,
            reason=reason,
        )

    def _own(self, handle: Any, own_pids: set[int]) -> tuple[dict[int, int], str]:
        """What our processes use of it, and why that isn't all, if it isn't."""
        try:
            listed = _processes(self.nvml, handle)
        except NvmlError as error:
            return {}, str(error)
        by_pid = {pid: used for pid, used in listed.items() if pid in own_pids and used is not None}
        untold = sorted(pid for pid in own_pids if pid in listed and pid not in by_pid)
        if untold:
            return by_pid, f"NVML doesn't tell what process {untold[0]} uses"
        missing = sorted(own_pids - listed.keys())
        if missing and not _sees_every_process(self.root):
            return by_pid, f"NVML doesn't list process {missing[0]}; in a container it can't see all of them"
        return by_pid, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmeasuredDevice:
    """A CUDA device without NVML: CUDA may well find it, but nobody tells what its memory holds."""

    uuid: str
    visible: str
    reason: str
    name: str = "cuda:0"
    kind: Literal["cpu", "cuda"] = "cuda"

    def read(self, own_pids: Collection[int] = ()) -> Reading:
        """Nothing is known of it, whosoever processes are asked for."""
        del own_pids
        return Reading(total_bytes=None, used_bytes=None, others_bytes=None, reason=self.reason)


def _memory(nvml: Nvml, handle: Any) -> tuple[int, int]:
    """Total and used bytes, both without what the driver keeps for itself where it tells that apart."""
    try:
        found = nvml.call("nvmlDeviceGetMemoryInfo", handle, nvml.constant("nvmlMemory_v2"))
        total, used = found.total - found.reserved, found.used
    except (NvmlError, AttributeError):
        # Drivers before 510 know the first form only, which counts it as used.
        found = nvml.call("nvmlDeviceGetMemoryInfo", handle)
        total, used = found.total, found.used
    if not 0 < total < _ABSURD_BYTES or not 0 <= used < _ABSURD_BYTES:
        raise NvmlError(f"NVML: nvmlDeviceGetMemoryInfo: {used} of {total} bytes can't be")
    return total, used


def _processes(nvml: Nvml, handle: Any) -> dict[int, int | None]:
    """Bytes by process; None where NVML lists it without them (containers, Windows drivers).

    Raises:
        NvmlError: the list of computing processes can't be had. The others may be missing: MIG instances have none.
    """
    uses: dict[int, int | None] = {}
    for names in _LISTS:
        try:
            listed = nvml.first(names, handle)
        except NvmlError:
            if names is _LISTS[0]:
                raise
            continue
        # One entry an instance or context; but a process that computes and draws stands in two lists with the same.
        sums: Counter[int] = Counter()
        for process in listed:
            if process.usedGpuMemory is None or process.usedGpuMemory >= _ABSURD_BYTES:
                uses.setdefault(process.pid, None)
            else:
                sums[process.pid] += process.usedGpuMemory
        for pid, used in sums.items():
            uses[pid] = max(used, uses.get(pid) or 0)
    return uses


def _sees_every_process(root: Path) -> bool:
    """Whether a process that NVML doesn't list uses nothing: only where our process numbers are the machine's."""
    try:
        return os.readlink(root / "proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False
