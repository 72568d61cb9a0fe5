"""The shape of a plan: which steps follow each other and which run side by side, as Celery's canvas can say it.

Chains and groups can be put into each other, and say exactly what a plan says as long as that is series-parallel. In
a plan that isn't (b and c need a, d needs a's neighbor and b), the steps that need nothing go first and the others wait
for all of them: a step may then wait for one it doesn't need, never the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["InSeries", "Shape", "SideBySide", "shape_of"]


@dataclass(frozen=True, slots=True)
class InSeries:
    """Each begins when the one before it has ended."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """All begin together; none waits for another."""

    parts: tuple[Shape, ...]


Shape = str | InSeries | SideBySide


def shape_of(needs: Mapping[str, Sequence[str]]) -> Shape:
    """The shape of a plan that isn't empty.

    Args:
        needs: by step, in an order in which none comes before what it needs, the steps that it waits for.
    """
    return _shape(list(needs), _before(needs))


def _before(needs: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """By step, all that must have ended before it begins."""
    before: dict[str, frozenset[str]] = {}
    for name, needed in needs.items():
        before[name] = frozenset(needed).union(*(before[one] for one in needed))
    return before


def _shape(names: list[str], before: Mapping[str, frozenset[str]]) -> Shape:
    if len(names) == 1:
        return names[0]
    islands = _islands(names, before)
    if len(islands) > 1:
        return SideBySide(tuple(_shape(island, before) for island in islands))
    head, rest = _cut(names, before)
    tail = _shape(rest, before)
    return InSeries((_shape(head, before), *(tail.parts if isinstance(tail, InSeries) else (tail,))))


def _islands(names: list[str], before: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of steps that have nothing to do with each other."""
    islands: list[list[str]] = []
    for name in names:
        near = [island for island in islands if not before[name].isdisjoint(island)]
        joined = {one for island in near for one in island} | {name}
        islands = [island for island in islands if island not in near]
        islands.append([one for one in names if one in joined])
    return islands


def _cut(names: list[str], before: Mapping[str, frozenset[str]]) -> tuple[list[str], list[str]]:
    """The first steps such that all others wait for each of them; without such, those that wait for none."""
    for size in range(1, len(names)):
        ordered = sorted(names, key=lambda name: len(before[name].intersection(names)))
        head, rest = ordered[:size], ordered[size:]
        if all(before[name].issuperset(head) for name in rest):
            return [n for n in names if n in head], [n for n in names if n in rest]
    first = [name for name in names if before[name].isdisjoint(names)]
    return first, [name for name in names if name not in first]
