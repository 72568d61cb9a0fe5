"""What every kind of device has in common, and what it tells of its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Device", "Reading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a device says of its memory now, in bytes; what can't be known is None, never 0."""

    #: What all processes together may use: without what the driver keeps, within the limits of the cgroup.
    total_bytes: int | None
    #: What everybody uses, without file cache that the kernel gives back by itself.
    used_bytes: int | None
    #: What processes use that were not said to be ours.
    others_bytes: int | None
    #: What each of ours uses, where that is known.
    by_pid: Mapping[int, int] = field(default_factory=dict)
    #: Why something is None.
    reason: str = ""

    @property
    def free_bytes(self) -> int | None:
        """Bytes that nobody uses."""
        if self.total_bytes is None or self.used_bytes is None:
            return None
        return max(0, self.total_bytes - self.used_bytes)


class Device(Protocol):
    """One device as a worker knows it; made by :func:`ccs_workers.devices.find_device`."""

    @property
    def name(self) -> str:
        """What torch is told inside the engine process: ``cpu`` or ``cuda:0``."""

    @property
    def uuid(self) -> str:
        """The same for every worker on this device, and for no other device of this machine."""

    @property
    def kind(self) -> Literal["cpu", "cuda"]: ...

    @property
    def visible(self) -> str:
        """The engine process's ``CUDA_VISIBLE_DEVICES``; empty on a CPU, where none is set."""

    def read(self, own_pids: Collection[int] = ()) -> Reading:
        """Ask the device now; takes milliseconds and never raises.

        Args:
            own_pids: the processes whose memory isn't that of others.
        """
