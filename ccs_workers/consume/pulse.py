"""What a worker knows of its own ability to consume, and the state it derives from that."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONSUMING", "Consuming", "Pulse", "State", "Verdict"]


class State(StrEnum):
    """What a worker says of itself."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    #: It should be claiming jobs, and isn't.
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, and for ``stalled`` the reason."""

    state: State
    reason: str = ""


class Consuming:
    """Whether Celery's consumer has its connection and its loop runs; set by it, read by any thread."""

    def __init__(self) -> None:
        self._why = "not connected yet"
        self.has_begun = False
        #: Called after each change.
        self.on_change: Callable[[], None] | None = None

    def begin(self) -> None:
        """The loop runs."""
        self.has_begun = True
        self._tell("")

    def end(self, why: str) -> None:
        """The connection is gone, or could not be had."""
        self._tell(why)

    def _tell(self, why: str) -> None:
        self._why = why
        if self.on_change is not None:
            self.on_change()

    @property
    def trouble(self) -> str:
        """Empty while it consumes, else why not."""
        return self._why


#: One process is one worker; Celery builds its consumer itself and offers no other seam.
CONSUMING: Final = Consuming()


class Pulse:
    """Watches whether jobs wait beside free slots. For one thread; ``stall_s`` in seconds."""

    def __init__(self, consuming: Consuming, stall_s: float) -> None:
        self._consuming = consuming
        self._stall_s = stall_s
        self._idle_since: float | None = None
        self._waiting = 0

    def look(self, *, waiting: int, silent_s: float) -> None:
        """Take one sample.

        Args:
            waiting: tickets on the queues for which a slot is free; 0 if there is no such slot.
            silent_s: seconds since the ledger last answered a claim of this worker.
        """
        now = time.monotonic()
        self._waiting = waiting
        if not waiting:
            self._idle_since = None
        else:
            first = now if self._idle_since is None else self._idle_since
            self._idle_since = max(first, now - silent_s)

    @property
    def trouble(self) -> str:
        """Empty if this worker is able to consume, else why it isn't."""
        if why := self._consuming.trouble:
            return f"the consumer has no connection ({why})"
        if self._idle_since is not None and time.monotonic() - self._idle_since >= self._stall_s:
            return (
                f"{self._waiting} jobs wait, slots are free, and nothing was claimed for {self._stall_s:g} s"
            )
        return ""
