"""Who is in the decode loop and who waits for it: places, room, and who may run beside whom after a crash."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ccs_workers.engines.text.request import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccs_workers.engines.text.request import Request

#: Crashes that a job may be part of before it fails, whoever caused them.
MOST_CRASHES: Final = 4


class Roster:
    """First come, first served. Not locked: its owner does that."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: deque[Request] = deque()
        self._active: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    def find(self, key: str) -> Request | None:
        return self._active.get(key) or next((one for one in self._waiting if one.job.key == key), None)

    def active(self, key: str) -> Request | None:
        return self._active.get(key)

    def append(self, request: Request) -> None:
        self._waiting.append(request)

    def remove(self, request: Request) -> bool:
        """Forget a request; return whether it was active."""
        if self._active.pop(request.job.key, None) is not None:
            return True
        self._waiting.remove(request)
        return False

    def clear(self) -> None:
        self._waiting.clear()
        self._active.clear()

    def admit(self, room: int, room_for: Callable[[int], int]) -> Iterator[Request]:
        """Make the next waiting ones active while there are places and ``room``; yield each."""
        while self._waiting and len(self._active) < self._places:
            request = self._waiting[0]
            request.room = room_for(request.most_tokens)
            if not self._may_join(request) or self._room_held() + request.room > room:
                return
            self._active[request.job.key] = self._waiting.popleft()
            yield request

    def crashed(self) -> list[Request]:
        """Empty the loop after a crash. Everyone waits again, in front; return those who are to fail for it.

        Whoever was in it alone did it. The only one on trial is tried again alone; with nobody on trial all
        are, one joining after the other.
        """
        suspects = list(self._active.values())
        on_trial = [request for request in suspects if request.trial is not Trial.NONE]
        for request in suspects:
            request.crashes += 1
            if not on_trial:
                request.trial = Trial.WATCHED
        for request in on_trial:
            request.trial = Trial.ALONE
        self._active.clear()
        self._waiting.extendleft(reversed([*on_trial, *(one for one in suspects if one not in on_trial)]))
        return [one for one in suspects if len(suspects) == 1 or one.crashes >= MOST_CRASHES]

    def _may_join(self, request: Request) -> bool:
        if request.trial is Trial.ALONE:
            return not self._active
        return all(other.trial is Trial.NONE for other in self._active.values())

    def _room_held(self) -> int:
        return sum(request.room for request in self._active.values())
