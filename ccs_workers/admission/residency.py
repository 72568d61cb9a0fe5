"""Which models are to be loaded: a pure choice between those for which jobs wait and those that are there.

A model for which jobs wait is loaded where there is room. Where there isn't, others make room if they have been there
for their minimum stay: first those that nobody uses, the longest unused ones first; then those whose own waiting jobs
are less urgent; and any at all once a job has waited longer than its patience, which grows with the time that loading
takes. So switches are bounded, no model goes just after it came, and none is kept out for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Demand", "ResidencyRules", "Resident", "Switch", "next_switch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyRules:
    """Bounds of the choice."""

    #: Seconds for which a loaded model stays at least, and as a multiple of the time it took to load.
    stay_s: float = 10.0
    stay_per_load: float = 4.0
    #: Seconds a job waits for its model before others make room whatever they do, and the same as a multiple.
    patience_s: float = 20.0
    patience_per_load: float = 4.0
    #: Most models that make room within a minute.
    switches_per_minute: int = 4


#: Jobs wait so long at least before a model makes room for them: another worker may have theirs.
_PAUSE_S: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A model that isn't loaded, and for which jobs wait."""

    alias: str
    #: Score of the best of them, low first, and seconds since the first was submitted.
    score: float
    waited_s: float
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A loaded model."""

    alias: str
    load_s: float
    here_s: float
    #: Seconds since its last job ended; 0 while any runs.
    unused_s: float
    busy: bool
    #: Score of the best waiting job; None if none waits.
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Load one model once others are gone."""

    alias: str
    evict: tuple[str, ...] = ()


def next_switch(
    demands: Sequence[Demand],
    residents: Sequence[Resident],
    fits: Callable[[str, Sequence[str]], bool],
    *,
    recent: int,
    rules: ResidencyRules,
) -> Switch | None:
    """The next thing to do, if anything.

    Args:
        demands: models that are wanted.
        residents: models that are there.
        fits: whether a model would fit without these residents.
        recent: how many models have made room within the last minute.
        rules: the bounds.
    """

    def overdue(one: Demand) -> bool:
        return one.waited_s >= rules.patience_s + rules.patience_per_load * one.load_s

    # Whoever has lost patience comes first, by its waiting; then the most urgent.
    wanted = sorted(demands, key=lambda one: (not overdue(one), -one.waited_s if overdue(one) else one.score))
    for demand in wanted:
        if fits(demand.alias, ()):
            return Switch(alias=demand.alias)
    for demand in wanted:
        if demand.waited_s < _PAUSE_S:
            continue
        able = [one for one in residents if _may_go(one, demand, rules, anyway=overdue(demand))]
        able.sort(key=_worth)
        evict: list[str] = []
        for resident in able[: max(0, rules.switches_per_minute - recent)]:
            evict.append(resident.alias)
            if fits(demand.alias, evict):
                return Switch(alias=demand.alias, evict=_needed(demand.alias, evict, fits))
    return None


def _may_go(resident: Resident, demand: Demand, rules: ResidencyRules, *, anyway: bool) -> bool:
    if resident.here_s < max(rules.stay_s, rules.stay_per_load * resident.load_s):
        return False
    return anyway or resident.score is None or demand.score < resident.score


def _worth(resident: Resident) -> tuple[bool, bool, float, float]:
    """Least worth first: unused, without waiting jobs, with the least urgent ones, unused for longest, loaded fast."""
    urgency = 0.0 if resident.score is None else -resident.score
    return resident.busy, resident.score is not None, urgency, resident.load_s - resident.unused_s


def _needed(alias: str, evict: Sequence[str], fits: Callable[[str, Sequence[str]], bool]) -> tuple[str, ...]:
    """Only those of a list without which it doesn't fit: a small one may have been listed before a large one."""
    needed = list(evict)
    for one in evict:
        rest = [other for other in needed if other != one]
        if fits(alias, rest):
            needed = rest
    return tuple(needed)
