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
        #: Writers that wait for the server, and the engines with them; when time was last given out again.
        self._stalled = 0
        self._resumed_at = self._at
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

    def stall(self, since: float) -> None:
        """Nothing uses the device, and hasn't since then: an engine waits until it can hand over what it has."""
        with self._lock:
            now_s, now = self._advance(), self._clock()
            if not self._stalled and self._begun:
                # Taken back from those that are active now, which as a rule are those that got it.
                back_s = max(0.0, now - max(since, self._resumed_at)) / len(self._begun)
                self._share_s = max(now_s - back_s, max(self._begun.values()))
            self._stalled += 1

    def resume(self) -> None:
        """One that waited goes on."""
        with self._lock:
            self._advance()
            self._stalled -= 1
            self._resumed_at = self._at

    def _advance(self) -> float:
        now = self._clock()
        if self._begun and not self._stalled:
            self._share_s += (now - self._at) / len(self._begun)
        self._at = now
        return self._share_s
