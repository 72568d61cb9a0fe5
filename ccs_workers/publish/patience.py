"""Waiting for a server that is away: at first hardly at all, then longer, and not for ever."""

from __future__ import annotations

import random
import time
from typing import Final

#: Seconds after which whoever waits gives up.
GIVE_UP_AFTER_S: Final = 300.0
#: Seconds of the first and the longest pause between two tries; each is twice the one before.
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5


class Patience:
    """That of one call. A cut connection costs it a moment; an outage, half a second after its end at most."""

    def __init__(self) -> None:
        self._until = time.monotonic() + GIVE_UP_AFTER_S
        self._pause_s = FIRST_PAUSE_S

    def wait(self) -> bool:
        """Sleep until the next try; False without sleeping once it is used up."""
        if time.monotonic() > self._until:
            return False
        # Threads that lost the server at the same moment must not all come back at the same moment.
        time.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        return True
