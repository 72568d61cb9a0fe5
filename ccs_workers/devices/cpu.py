"""The CPU as a device: its memory is the least that the machine and the cgroups around this process allow."""

from __future__ import annotations

import hashlib
import importlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ccs_workers.devices.cgroup import Bound, cgroup_bounds
from ccs_workers.devices.device import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["CpuDevice", "cpu_device"]

_MACHINE: Final = "machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a process holds of the machine's memory, in bytes."""

    #: Pages of its own: resident less shared.
    private_bytes: int
    #: Its part of the pages that it shares, most of them of mapped files (libraries, weights).
    mapped_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDevice:
    """This machine's memory as far as this process may use it."""

    uuid: str
    root: Path
    machine: Callable[[], Bound]
    name: str = "cpu"
    kind: Literal["cpu", "cuda"] = "cpu"
    visible: str = ""

    def read(self, own_pids: Collection[int] = ()) -> Reading:
        """Room is the least that any limit leaves, the machine's included; the total is the lowest limit."""
        bounds = _bounds(self.root, self.machine)
        unknown = next((bound for bound in bounds if bound.limit_bytes is None), None)
        if unknown is not None:
            return Reading(total_bytes=None, used_bytes=None, others_bytes=None, reason=unknown.reason)
        total = min(bound.limit_bytes for bound in bounds if bound.limit_bytes is not None)
        own = footprints(own_pids)
        by_pid = {pid: each.private_bytes + each.mapped_bytes for pid, each in own.items()}
        room: int | None = None
        cache = 0
        for bound in bounds:
            if bound.used_bytes is None or bound.limit_bytes is None:
                return Reading(
                    total_bytes=total, used_bytes=None, others_bytes=None, by_pid=by_pid, reason=bound.reason
                )
            left = max(0, bound.limit_bytes - bound.used_bytes)
            if room is None or left < room:
                room, cache = left, bound.cache_bytes
        used = total - min(total, room or 0)
        return Reading(
            total_bytes=total,
            used_bytes=used,
            others_bytes=max(0, used - _counted(own, cache)),
            by_pid=by_pid,
        )


def cpu_device(root: Path = Path("/"), machine: Callable[[], Bound] | None = None) -> CpuDevice:
    """The CPU, under a name that all processes share which count against the same limit.

    Args:
        root: where ``proc`` and the cgroups are found.
        machine: tells the memory of the machine; psutil does if it isn't given.
    """
    machine = machine or machine_bound
    known = [bound for bound in _bounds(root, machine) if bound.limit_bytes is not None]
    lowest = min(known, key=lambda bound: bound.limit_bytes or 0, default=None)
    digest = hashlib.sha256((lowest.key if lowest else _MACHINE).encode()).hexdigest()[:12]
    return CpuDevice(uuid=f"cpu-{socket.gethostname()}-{digest}", root=root, machine=machine)


def _bounds(root: Path, machine: Callable[[], Bound]) -> list[Bound]:
    """The machine and every group whose limit is lower; "unlimited" is a huge number in the first cgroups."""
    whole = machine()
    lower = [
        bound
        for bound in cgroup_bounds(root)
        if bound.limit_bytes is None or whole.limit_bytes is None or bound.limit_bytes < whole.limit_bytes
    ]
    return [*lower, whole]


def machine_bound() -> Bound:
    """The physical memory; what is "available" there is free or cache, so no cache counts as used."""
    try:
        found = _psutil().virtual_memory()
    except (ImportError, OSError, ValueError, KeyError) as error:
        reason = f"the machine's memory can't be read: {type(error).__name__}"
        return Bound(key=_MACHINE, limit_bytes=None, used_bytes=None, reason=reason)
    return Bound(
        key=_MACHINE,
        limit_bytes=found.total,
        used_bytes=found.total - found.available,
        cache_bytes=found.total,
    )


def _counted(own: Mapping[int, Footprint], cache_bytes: int) -> int:
    """How much of our memory a bound counts as used.

    Mapped files count only where the kernel doesn't hold them as cache that it may drop. Which ones it does is
    unknown, so as many as can be: what others use is never underestimated.
    """
    mapped = sum(footprint.mapped_bytes for footprint in own.values())
    return sum(footprint.private_bytes for footprint in own.values()) + max(0, mapped - cache_bytes)


def footprints(pids: Collection[int]) -> dict[int, Footprint]:
    """What these processes hold; without those that have ended or may not be looked at."""
    try:
        psutil = _psutil()
    except ImportError:
        return {}
    found = {}
    for pid in set(pids):
        try:
            process = psutil.Process(pid)
            memory = process.memory_info()
            private = max(0, memory.rss - getattr(memory, "shared", 0))
            try:
                # Each shared page divided by the number of processes that map it: the sum counts none twice.
                proportional = getattr(process.memory_full_info(), "pss", 0)
            except psutil.AccessDenied:
                proportional = 0
            found[pid] = Footprint(private_bytes=private, mapped_bytes=max(0, proportional - private))
        except (psutil.Error, OSError, ValueError):
            continue
    return found


def _psutil() -> Any:
    # A part of the extra `worker`, which the simulated engine does without.
    return importlib.import_module("psutil")
