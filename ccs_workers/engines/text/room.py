"""The room for keys and values of a decode loop: how it is divided, and what a job takes of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KvRoom", "Pages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """How layers of one kind of attention divide a unit of room."""

    tokens_per_page: int
    pages_per_unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRoom:
    """Counted in units (the manager's sectors) that the layers take whole."""

    units: int
    unit_bytes: int
    pages: Sequence[Pages]

    @classmethod
    def of(cls, cache: Any) -> Self:
        """Read it from transformers' paged cache."""
        return cls(
            units=cache.num_sectors,
            unit_bytes=cache.bytes_per_sector,
            pages=tuple(
                Pages(tokens_per_page=one.tokens_per_page, pages_per_unit=one.blocks_per_sector)
                for one in cache.cache_allocators.values()
            ),
        )

    @property
    def total_bytes(self) -> int:
        return self.units * self.unit_bytes

    @property
    def bytes_per_token(self) -> float:
        """Of a long request: without what whole units add to it."""
        return sum(self.unit_bytes / (kind.tokens_per_page * kind.pages_per_unit) for kind in self.pages)

    def units_for(self, tokens: int) -> int:
        """Return the units a request holds at most; never less than it will take."""
        return sum(ceil(ceil(tokens / kind.tokens_per_page) / kind.pages_per_unit) for kind in self.pages)

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes of these units."""
        return self.units_for(tokens) * self.unit_bytes

    def longest(self, tokens: int, units: int) -> int:
        """Return the length, up to ``tokens``, of the longest request that fits into so many units."""
        return bisect_right(range(tokens + 1), units, key=self.units_for) - 1

    def estimate(
        self, template_tokens: int, tokens_per_char: float
    ) -> tuple[float, float, float, float, float]:
        """Return a request's bytes as a linear estimate, as ``EngineInfo.need`` has it.

        ``template_tokens`` are those of a prompt of one.
        """
        token = self.bytes_per_token
        # Half a unit of each kind is what taking whole ones adds on average.
        whole = self.unit_bytes * len(self.pages) / 2
        return (template_tokens * token + whole, tokens_per_char * token, token, 0.0, 0.0)
