"""The gate of an engine: jobs share it, a suspect has it to itself."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gate:
    """Shared for ordinary jobs, exclusive for one that must run alone; a waiting exclusive one goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def enter(self, *, alone: bool) -> Iterator[None]:
        """Be inside, with others or alone."""
        with self._changed:
            if alone:
                self._waiting += 1
                self._changed.wait_for(lambda: self._inside == 0)
                self._waiting -= 1
            else:
                self._changed.wait_for(lambda: not self._alone and self._waiting == 0)
            self._inside += 1
            self._alone = alone
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._alone = False if self._inside == 0 else self._alone
                self._changed.notify_all()
