"""Who makes way for whom, as a pure choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccs_workers.scheduling.preemption import (
    MOST_PREEMPTIONS,
    PEACE_PER_RESTART,
    PEACE_S,
    Newcomer,
    Running,
    victim_of,
)

URGENT = Newcomer(id="n", queue="ccs.text", rank=0, score=100)
BATCH = Running(
    key=("b", 1),
    queue="ccs.text",
    rank=3,
    score=900,
    relegated=False,
    ran_s=PEACE_S,
    restart_s=0.1,
    preempted=0,
    make_way=lambda: None,
)


def test_the_least_urgent_job_makes_way():
    standard = replace(BATCH, rank=2, score=2000)
    later = replace(BATCH, score=950)
    relegated = replace(BATCH, rank=0, score=300, relegated=True)
    assert victim_of(URGENT, [standard]) is standard
    assert victim_of(URGENT, [standard, BATCH, later]) is later
    assert victim_of(URGENT, [later, relegated, standard]) is relegated
    assert victim_of(URGENT, []) is None


@pytest.mark.parametrize(
    "job",
    [
        replace(BATCH, rank=1),
        replace(BATCH, ran_s=PEACE_S - 0.1),
        replace(BATCH, restart_s=PEACE_S / PEACE_PER_RESTART + 0.01),
        replace(BATCH, preempted=MOST_PREEMPTIONS),
        # The next claim would take it back.
        replace(BATCH, score=100),
    ],
    ids=["too near", "in peace", "long to begin again", "often enough", "better score"],
)
def test_these_are_left_alone(job):
    assert victim_of(URGENT, [job]) is None


def test_only_the_two_most_urgent_classes_take_places():
    interactive = replace(URGENT, rank=1)
    assert victim_of(interactive, [BATCH]) is BATCH
    assert victim_of(interactive, [replace(BATCH, rank=2)]) is None
    assert victim_of(replace(URGENT, rank=2), [replace(BATCH, relegated=True)]) is None
    assert victim_of(replace(URGENT, relegated=True), [BATCH]) is None
