"""The gate of an engine: jobs share it, suspects come in one by one, and the one they point at has it alone."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds between looks at whether a job that waits for its turn is still to have one.
_LOOK_EVERY_S: Final = 0.25


class Company(Enum):
    """With whom a job may be inside."""

    #: Anybody.
    SHARED = auto()
    #: Anybody but another suspect that hasn't proven itself.
    WATCHED = auto()
    #: Nobody.
    ALONE = auto()


class Turn:
    """One stay of one job inside the gate, from its admission to its end."""

    def __init__(self, gate: Gate, company: Company, make_way: Callable[[], None]) -> None:
        self._gate = gate
        #: What the job still needs; a suspect that has proven itself goes on in anybody's.
        self.company = company
        #: Called from any thread, at most a few times, when another job must be alone: step out soon and come again.
        self.make_way = make_way

    def prove(self) -> None:
        """The job has got beyond the point where its engine died: the next suspect, or everybody, may come in."""
        self._gate.prove(self)


class Gate:
    """Lets jobs in; one that must be alone goes first, and those inside step out for it.

    A turn that somebody waits for is short: suspects are on trial only until their first output behind the point where
    they died before, so no job waits for another one's whole run.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: set[Turn] = set()
        self._alone: Turn | None = None
        self._watched: Turn | None = None
        self._waiting = 0

    @contextmanager
    def enter(
        self, company: Company, *, make_way: Callable[[], None], stopped: Callable[[], bool]
    ) -> Iterator[Turn | None]:
        """Be inside; None if ``stopped()`` turned true before it was this job's turn."""
        turn = Turn(self, company, make_way)
        if not self._admit(turn, stopped):
            yield None
            return
        try:
            yield turn
        finally:
            self._leave(turn)

    def _admit(self, turn: Turn, stopped: Callable[[], bool]) -> bool:
        alone = turn.company is Company.ALONE
        if alone:
            with self._changed:
                self._waiting += 1
                others = [other for other in self._inside if other is not self._alone]
            # Not under the lock: this writes to a pipe, whose reader may be about to ask for the lock.
            for other in others:
                other.make_way()
        with self._changed:
            while not self._may_enter(turn) and not stopped():
                self._changed.wait(_LOOK_EVERY_S)
            self._waiting -= alone
            if not (admitted := self._may_enter(turn)):
                self._changed.notify_all()
                return False
            self._inside.add(turn)
            if alone:
                self._alone = turn
            elif turn.company is Company.WATCHED:
                self._watched = turn
        return admitted

    def _may_enter(self, turn: Turn) -> bool:
        match turn.company:
            case Company.ALONE:
                return not self._inside
            case Company.WATCHED:
                return self._watched is None and self._alone is None and self._waiting == 0
            case Company.SHARED:
                return self._alone is None and self._waiting == 0

    def prove(self, turn: Turn) -> None:
        """See :meth:`Turn.prove`."""
        with self._changed:
            turn.company = Company.SHARED
            self._let_go(turn)
            others_wait = self._waiting > 0
        if others_wait:
            turn.make_way()

    def _leave(self, turn: Turn) -> None:
        with self._changed:
            self._inside.discard(turn)
            self._let_go(turn)

    def _let_go(self, turn: Turn) -> None:
        if self._alone is turn:
            self._alone = None
        if self._watched is turn:
            self._watched = None
        self._changed.notify_all()
