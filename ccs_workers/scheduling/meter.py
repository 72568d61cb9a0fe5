"""Device time: what each job used of the worker's device, of time shared by several jobs its equal part."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccs_workers.publish.run import Spent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeviceMeter"]


class DeviceMeter:
    """Divides time equally among the jobs that are active; all parts together are the time in which any was."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Where the share of a job that was active from the start would stand now, and when that was reckoned.
        self._share_s = 0.0
        self._at = clock()
        self._begun: dict[str, float] = {}
        self._first: dict[str, float] = {}

    def begin(self, key: str) -> None:
        """A job is active from now on."""
        with self._lock:
            self._begun[key] = self._advance()

    def first_output(self, key: str) -> None:
        """A job has given its first output; later ones don't count."""
        with self._lock:
            if key in self._begun and key not in self._first:
                self._first[key] = self._advance()

    def end(self, key: str) -> Spent:
        """A job isn't active any more; what it used.

        Raises:
            KeyError: it wasn't active.
        """
        with self._lock:
            share_s = self._advance()
            begun_s = self._begun.pop(key)
            first_s = self._first.pop(key, None)
        return Spent(device_s=share_s - begun_s, first_s=None if first_s is None else first_s - begun_s)

    def _advance(self) -> float:
        now = self._clock()
        if self._begun:
            self._share_s += (now - self._at) / len(self._begun)
        self._at = now
        return self._share_s
