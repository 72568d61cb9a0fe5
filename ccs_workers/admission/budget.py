"""How much of a device's memory a worker may use: what it was told, and what others leave of it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccs_workers.devices import Device, Reading
    from ccs_workers.settings import MemoryWish

__all__ = ["DeviceBudget"]

logger = logging.getLogger(__name__)

#: What the worker's own process may come to on a CPU, where it shares the memory with its engines.
_OWN_BYTES: Final = 256 * 2**20


class DeviceBudget:
    """Asks the device now and again, since other processes come and go; for one thread at a time."""

    def __init__(self, device: Device, wish: MemoryWish) -> None:
        self._device = device
        self._wish = wish
        self._told = ""
        #: Used by others, as far as it was ever known.
        self._others_bytes: int | None = None

    def read(self, engine_pids: Collection[int] = ()) -> int | None:
        """Bytes for engines and jobs together; None, with a warning, if nobody knows.

        Args:
            engine_pids: the worker's engine processes, whose memory isn't that of others.
        """
        own = os.getpid()
        reading = self._device.read({own, *engine_pids})
        if reading.total_bytes is None:
            self._warn(f"its memory is unknown ({reading.reason})")
            return self._wish.limit_bytes
        others_bytes = self._others(reading, engine_pids)
        own_bytes = max(_OWN_BYTES, reading.by_pid.get(own, 0)) if self._device.kind == "cpu" else 0
        wanted = self._wish.limit_bytes or int(reading.total_bytes * self._wish.share) - own_bytes
        return max(0, min(wanted, reading.total_bytes - others_bytes - own_bytes))

    def _others(self, reading: Reading, engine_pids: Collection[int]) -> int:
        if reading.others_bytes is not None:
            self._others_bytes = reading.others_bytes
        elif self._others_bytes is None:
            self._warn(f"what others use is unknown ({reading.reason})")
            # Before any engine runs, all that is used is others'.
            self._others_bytes = 0 if engine_pids else reading.used_bytes or 0
        return self._others_bytes

    def _warn(self, what: str) -> None:
        if what != self._told:
            logger.warning("%s: %s; --memory bounds what this worker takes", self._device.name, what)
        self._told = what
