"""Ends a text before its first stop string, however tokens cut it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopFilter:
    """Passes text on until a stop string is complete; what could be the start of one is held back.

    Of several, the one that is complete first counts, so the result doesn't depend on how the text is cut up.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        #: True from the moment a stop string was complete; everything after it is swallowed.
        self.found = False

    def push(self, text: str) -> str:
        """Take the next piece of text; return what surely comes before any stop string."""
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        end = self._first_match(text)
        if end is not None:
            self.found, self._held = True, ""
            return text[:end]
        held = self._possible_start(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        """Where the match begins that ends first; of those that end together the longest."""
        starts = ((text.find(stop), len(stop)) for stop in self._stops)
        matches = [(start + length, start) for start, length in starts if start >= 0]
        return min(matches)[1] if matches else None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
