"""What the steps of a plan are expected to take: how its time is split over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from ccs_broker import topology
from ccs_broker.ledger.entries import sizes_of
from ccs_broker.pipelines.records import Way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_broker.pipelines.records import Plan, Step

__all__ = ["ask_costs", "ways_of"]

#: Of a kind of job of which nothing was learnt; the same as in ``lua/lib_score.lua``.
_UNKNOWN_US: Final = 200_000.0
_COEFFICIENTS: Final = ("c0", "c1", "c2", "c3", "c4")


def ask_costs(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The commands that read what was learnt of each step's kind of job, for one round trip."""
    return tuple(("HMGET", _key(step), *_COEFFICIENTS) for step in plan.steps)


def ways_of(plan: Plan, replies: Sequence[object]) -> dict[str, Way]:
    """By step, its expected time and that of the longest way behind it."""
    costs = {
        step.name: _cost(step, cast("Sequence[bytes | None]", reply))
        for step, reply in zip(plan.steps, replies, strict=True)
    }
    ways: dict[str, Way] = {}
    for step in reversed(plan.steps):
        behind = [one for one in plan.steps if step.name in one.needs]
        rest = max((ways[one.name].cost_us + ways[one.name].rest_us for one in behind), default=0.0)
        ways[step.name] = Way(cost_us=costs[step.name], rest_us=rest)
    return ways


def _key(step: Step) -> str:
    return topology.work_of(topology.queue_of(step.job.modality), step.job.model or "")


def _cost(step: Step, learnt: Sequence[bytes | None]) -> float:
    if learnt[0] is None:
        return _UNKNOWN_US
    values = [float(value or 0) for value in learnt]
    sizes: Mapping[int, int] = dict(enumerate(sizes_of(step.job).values(), start=1))
    return max(1.0, values[0] + sum(values[place] * size for place, size in sizes.items()))
