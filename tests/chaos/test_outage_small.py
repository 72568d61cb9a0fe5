"""A short run of the outage benchmark: workers claim again, what they finished is written, and no job runs twice."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.chaos_check import ALL
from benchmarks.outage import BACK_S, LONG_PER_WORKER, plan_of, run


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_workers_take_up_jobs_again_after_an_outage(tmp_path):
    plan = plan_of(jobs=120, workers=2)
    outage = run(plan, 6.0, tmp_path, Console(quiet=True))
    assert outage.accepted == plan.jobs + LONG_PER_WORKER * plan.workers
    assert {what: outage.findings.counts[what] for what in ALL} == dict.fromkeys(ALL, 0), (
        outage.findings.examples
    )
    assert outage.complaints == []
    assert len(outage.claims_ms) == plan.workers
    assert all(0 <= after_ms <= BACK_S * 1000 for after_ms in outage.claims_ms.values()), outage.claims_ms
    assert outage.ended_by_same == outage.running >= LONG_PER_WORKER * plan.workers
    # Without jobs that ended meanwhile, and others that ran on, the run would have shown less.
    assert 0 < len(outage.late_outcomes_ms) < outage.running
    assert max(outage.late_outcomes_ms) <= BACK_S * 1000
    assert outage.twice == 0
