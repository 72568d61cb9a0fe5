"""A small run of the chaos benchmark: every kind of fault at least once, every job and every event checked."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.chaos_check import ALL
from benchmarks.chaos_plan import FaultKind, Plan
from benchmarks.chaos_run import run


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_whatever_dies(tmp_path):
    plan = Plan(jobs=150, faults=15, workers=3, seed=7, canvases=3, most_s=120.0)
    result = run(plan, tmp_path, Console(quiet=True))
    assert {what: result.findings.counts[what] for what in ALL} == dict.fromkeys(ALL, 0), (
        result.all_examples()
    )
    assert result.reader_complaints == []
    assert result.fleet_complaints == []
    assert {fault.kind for fault in result.faults} == set(FaultKind)
    assert result.accepted > plan.jobs
    assert result.canvases == 2 * plan.canvases
    # Without faults that hit running jobs the run would have shown nothing.
    assert result.resumed > plan.faults
