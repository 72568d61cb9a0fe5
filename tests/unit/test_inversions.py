"""The checker of the inversions benchmark finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.inversions import Seen, Taken, inversions

CLAIM = Taken(job="worse", sent=10.0, answered=10.1, models=("a",), free=5000, score=100, floor=False)
BETTER = Seen("ccs.text", "a", 0, 10, since=9.0, score=50, low=500)
WORSE = Seen("ccs.text", "a", 0, 10, since=9.5, until=10.0, score=100, low=500)


def found(seen: Seen, claim: Taken = CLAIM) -> tuple[int, int]:
    return inversions({"better": seen, "worse": WORSE}, [claim], 0.01)


def test_a_better_job_that_waited_is_an_inversion() -> None:
    assert found(BETTER) == (1, 0)
    assert found(replace(BETTER, past=[(1.0, 2.0), (9.0, 11.0)], since=20.0)) == (1, 0)
    assert found(replace(BETTER, model="")) == (1, 0)
    assert found(BETTER, replace(CLAIM, floor=True)) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"since": 9.995},
        {"until": 10.105},
        {"score": 100},
        {"model": "b"},
        {"memory": 5001},
        {"rank": 3, "memory": 2501},
        {"relegated_at": 9.0},
    ],
)
def test_one_that_was_not_eligible_is_none(changes: dict[str, object]) -> None:
    assert found(replace(BETTER, **changes)) == (0, 0)
