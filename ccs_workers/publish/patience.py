"""Waiting for a server that is away: at first hardly at all, then longer, and not for ever."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

#: Seconds after which whoever waits gives up.
GIVE_UP_AFTER_S: Final = 300.0
#: The same once the worker is told to stop: what a server doesn't take by then, the next worker computes again.
GIVE_UP_CLOSING_S: Final = 5.0
#: Seconds of the first and the longest pause between two tries; each is twice the one before.
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5


class Outage:
    """How long a server has been away for all of a worker, whichever call noticed it.

    Calls follow one another: if each had a patience of its own, a worker with hundreds of jobs would wait hundreds of
    times as long for a server that is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._most_s = GIVE_UP_AFTER_S

    def failed(self) -> bool:
        """A call didn't reach the server; True while it is worth another try."""
        with self._lock:
            now = time.monotonic()
            if self._since is None:
                self._since = now
            return now - self._since <= self._most_s

    def over(self) -> None:
        """A call reached it."""
        # Read without the lock, as every event of every job passes here.
        if self._since is not None:
            with self._lock:
                self._since = None

    def closing(self) -> None:
        """The worker is told to stop: an outage that goes on, or begins, is waited for no longer than this."""
        with self._lock:
            self._most_s = GIVE_UP_CLOSING_S
            if self._since is not None:
                self._since = time.monotonic()


#: A worker has one server.
OUTAGE: Final = Outage()


class Patience:
    """That of one call. A cut connection costs it a moment; an outage, half a second after its end at most."""

    def __init__(self, outage: Outage = OUTAGE) -> None:
        self._outage = outage
        self._until = time.monotonic() + GIVE_UP_AFTER_S
        self._pause_s = FIRST_PAUSE_S

    def wait(self) -> bool:
        """Sleep until the next try; False without sleeping once it is used up."""
        if not self._outage.failed() or time.monotonic() > self._until:
            return False
        # Threads that lost the server at the same moment must not all come back at the same moment.
        time.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        return True
