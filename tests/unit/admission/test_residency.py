"""Which models come and which make room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccs_workers.admission.residency import Demand, ResidencyRules, Resident, Switch, next_switch

RULES = ResidencyRules(stay_s=10, stay_per_load=4, patience_s=20, patience_per_load=4, switches_per_minute=4)
SIZES = {"a": 40, "b": 40, "c": 40, "small": 10}
WANTED = Demand(alias="c", score=500.0, waited_s=1.0, load_s=1.0)
IDLE = Resident(alias="a", load_s=1.0, here_s=60.0, unused_s=30.0, busy=False, score=None)
BUSY = Resident(alias="b", load_s=1.0, here_s=60.0, unused_s=0.0, busy=True, score=400.0)


def choose(demands, residents, *, budget=80, recent=0, rules=RULES):
    held = sum(SIZES[one.alias] for one in residents)

    def fits(alias, without):
        return SIZES[alias] <= budget - held + sum(SIZES[one] for one in without)

    return next_switch(demands, residents, fits, recent=recent, rules=rules)


def test_where_there_is_room_a_wanted_model_is_loaded_at_once():
    assert choose([replace(WANTED, waited_s=0.0)], [IDLE]) == Switch(alias="c")
    assert choose([], [IDLE, BUSY]) is None


def test_the_most_urgent_comes_first_where_both_would_fit():
    other = replace(WANTED, alias="small", score=100.0)
    assert choose([WANTED, other], [], budget=200) == Switch(alias="small")


def test_an_unused_model_makes_room_for_any_job():
    assert choose([WANTED], [BUSY, IDLE]) == Switch(alias="c", evict=("a",))
    # Another worker may take a job that has just come.
    assert choose([replace(WANTED, waited_s=0.1)], [BUSY, IDLE]) is None


def test_one_with_less_urgent_waiting_jobs_makes_room_and_one_with_more_urgent_ones_doesnt():
    both = [replace(BUSY, alias="a", score=900.0), BUSY]
    assert choose([WANTED], both) == Switch(alias="c", evict=("a",))
    assert choose([WANTED], [replace(one, score=100.0) for one in both]) is None


def test_patience_ends():
    both = [replace(BUSY, alias="a"), BUSY]
    assert choose([replace(WANTED, waited_s=23.9)], both) is None
    assert choose([replace(WANTED, waited_s=24.0)], both) == Switch(alias="c", evict=("a",))
    # A model that takes long to load is switched more rarely.
    assert choose([replace(WANTED, waited_s=24.0, load_s=10.0)], both) is None


@pytest.mark.parametrize(("load_s", "stay_s"), [(1.0, 10.0), (5.0, 20.0)])
def test_nobody_goes_before_its_minimum_stay(load_s, stay_s):
    late = replace(WANTED, waited_s=1e6)
    young = replace(IDLE, load_s=load_s, here_s=stay_s - 0.1)
    assert choose([late], [young, replace(young, alias="b")]) is None
    old = replace(young, here_s=stay_s)
    assert choose([late], [replace(young, alias="b"), old]) == Switch(alias="c", evict=("a",))


def test_switches_are_bounded():
    late = replace(WANTED, waited_s=1e6)
    assert choose([late], [BUSY, IDLE], recent=3) == Switch(alias="c", evict=("a",))
    assert choose([late], [BUSY, IDLE], recent=4) is None
    # Room that is there is no switch.
    assert choose([late], [IDLE], recent=4) == Switch(alias="c")


def test_only_those_go_that_must():
    small = replace(IDLE, alias="small", unused_s=900.0)
    assert choose([WANTED], [small, IDLE], budget=60) == Switch(alias="c", evict=("a",))
    assert choose([WANTED], [replace(IDLE, alias="small"), IDLE], budget=40) is not None


def test_the_longest_unused_goes_first_and_one_that_loads_fast_before_a_slow_one():
    other = replace(IDLE, alias="b", unused_s=31.0)
    assert choose([WANTED], [IDLE, other]) == Switch(alias="c", evict=("b",))
    slow = replace(other, load_s=10.0)
    assert choose([WANTED], [IDLE, slow]) == Switch(alias="c", evict=("a",))
