"""The shape of a plan: nothing begins before what it needs, and as little as possible waits for more than that."""

from __future__ import annotations

import random

import pytest

from ccs_broker.pipelines.shape import InSeries, Shape, SideBySide, shape_of


@pytest.mark.parametrize(
    ("needs", "shape"),
    [
        ({"a": ()}, "a"),
        ({"a": (), "b": ("a",)}, InSeries(("a", "b"))),
        ({"a": (), "b": ()}, SideBySide(("a", "b"))),
        ({"a": (), "b": ("a",), "c": ("b", "a")}, InSeries(("a", "b", "c"))),
        ({"a": (), "b": (), "c": ("a", "b")}, InSeries((SideBySide(("a", "b")), "c"))),
        # Each branch goes its own way to the join.
        (
            {"a": (), "b": ("a",), "c": (), "d": ("c",), "e": ("b", "d")},
            InSeries((SideBySide((InSeries(("a", "b")), InSeries(("c", "d")))), "e")),
        ),
        (
            {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": ()},
            SideBySide((InSeries(("a", SideBySide(("b", "c")), "d")), "e")),
        ),
        # Not series-parallel: d needn't wait for b, but does.
        (
            {"a": (), "b": (), "c": ("a", "b"), "d": ("a",)},
            InSeries((SideBySide(("a", "b")), SideBySide(("c", "d")))),
        ),
    ],
)
def test_shapes(needs, shape):
    assert shape_of(needs) == shape


def walked(shape: Shape, ended: set[str], order: list[str], needs: dict[str, tuple[str, ...]]) -> set[str]:
    """Go through a shape as it may run; the steps that have ended behind it."""
    if isinstance(shape, str):
        assert set(needs[shape]) <= ended, (shape, ended)
        order.append(shape)
        return ended | {shape}
    if isinstance(shape, InSeries):
        for part in shape.parts:
            ended = walked(part, ended, order, needs)
        return ended
    # Side by side, none may count on another.
    return set().union(*(walked(part, ended, order, needs) for part in shape.parts))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_plan_every_step_runs_once_behind_what_it_needs(seed):
    pick = random.Random(seed)
    names = [f"s{number}" for number in range(pick.randrange(1, 12))]
    needs = {
        name: tuple(pick.sample(names[:place], min(place, pick.randrange(3))))
        for place, name in enumerate(names)
    }
    order: list[str] = []
    assert walked(shape_of(needs), set(), order, needs) == set(names)
    assert sorted(order) == sorted(names)


def series_parallel(pick: random.Random, size: int, first: tuple[str, ...], needs: dict) -> tuple[str, ...]:
    """Add a random series-parallel plan behind some steps; the steps it ends with."""
    if size == 1:
        name = f"s{len(needs)}"
        needs[name] = first
        return (name,)
    left = pick.randrange(1, size)
    if pick.random() < 0.5:
        middle = series_parallel(pick, left, first, needs)
        return series_parallel(pick, size - left, middle, needs)
    return (
        *series_parallel(pick, left, first, needs),
        *series_parallel(pick, size - left, first, needs),
    )


def behind(shape: Shape, ended: frozenset[str], found: dict[str, frozenset[str]]) -> frozenset[str]:
    """By step, all that have ended for certain when it begins."""
    if isinstance(shape, str):
        found[shape] = ended
        return ended | {shape}
    if isinstance(shape, InSeries):
        for part in shape.parts:
            ended = behind(part, ended, found)
        return ended
    return frozenset().union(*(behind(part, ended, found) for part in shape.parts))


@pytest.mark.parametrize("seed", range(200))
def test_in_a_series_parallel_plan_nothing_waits_for_what_it_doesn_t_need(seed):
    pick = random.Random(seed)
    needs: dict[str, tuple[str, ...]] = {}
    series_parallel(pick, pick.randrange(1, 12), (), needs)
    found: dict[str, frozenset[str]] = {}
    behind(shape_of(needs), frozenset(), found)
    wanted: dict[str, frozenset[str]] = {}
    for name, some in needs.items():
        wanted[name] = frozenset(some).union(*(wanted[one] for one in some))
    assert found == wanted
