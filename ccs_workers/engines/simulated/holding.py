"""Jobs that wait for memory: what is held, and what a grant sets free."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Holding"]

Item = TypeVar("Item")


class Holding(Generic[Item]):
    """Items by job, each with the bytes that it needs. Not locked: its owner does that."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Item]] = {}

    def hold(self, key: str, item: Item, need_bytes: int, memory_bytes: int | None) -> bool:
        """Keep an item whose job was granted less than it needs; False: it has enough."""
        if memory_bytes is None or need_bytes <= memory_bytes:
            return False
        self._held[key] = (need_bytes, item)
        return True

    def grant(self, key: str, memory_bytes: int) -> Item | None:
        """Return the job's item if it was held and this is enough."""
        need_bytes, _ = self._held.get(key, (None, None))
        return self.take(key) if need_bytes is not None and need_bytes <= memory_bytes else None

    def take(self, key: str) -> Item | None:
        """Return the job's item if it was held; it is no longer."""
        return self._held.pop(key, (0, None))[1]
