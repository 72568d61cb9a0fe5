"""Puts what a log and a bell tell, in any order and more than once, into one sequence without holes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccs_broker.contract.event import Event


class Follower:
    """The place of one reader in one stream.

    An event is given out when it is the next one; an older one has been given out before, and a later one
    means that something was missed. Nothing need be held back for that: a script appends to the log before it
    rings, so the log holds whatever was missed.
    """

    def __init__(self, after: int = 0) -> None:
        self.last = after
        self.done = False
        self._heard = after

    @property
    def missing(self) -> tuple[int, int] | None:
        """First and last sequence number that must be fetched from the log, or None."""
        if self.done or self._heard <= self.last:
            return None
        return self.last + 1, self._heard

    def feed(self, event: Event) -> bool:
        """Take one event from anywhere; True if it is the next one and is to be given out now."""
        if self.done:
            return False
        self._heard = max(self._heard, event.seq)
        if event.seq > self.last + 1:
            return False
        # Nothing follows a terminal event, also if the reader had asked for what comes behind it.
        self.done = event.terminal
        if event.seq <= self.last:
            return False
        self.last = event.seq
        return True

    def feed_all(self, events: Iterable[Event]) -> Iterator[Event]:
        """Those of some events that are to be given out, in order."""
        return (event for event in events if self.feed(event))
