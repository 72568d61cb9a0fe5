"""Metrics of jobs whose fate is given."""

from __future__ import annotations

import pytest

from ccs_broker.contract.words import Modality, QosClass
from ccs_broker.simulate.metrics import jain, percentile, shares_of_demand, summarize
from ccs_broker.simulate.model import Demand
from ccs_broker.simulate.records import SimJob
from ccs_broker.simulate.trace import Row


def job(qos="realtime", *, at=0.0, wait=0.5, tenant="a", alone=0.1, device=1.0, **fate):
    row = Row(
        arrival_s=at,
        modality=Modality.TEXT,
        qos=QosClass(qos),
        tenant=tenant,
        images=0,
        audio_s=0.0,
        context_tokens=1,
        generated_tokens=1,
    )
    return SimJob(
        id="",
        row=row,
        demand=Demand(encode_s=0.0, context_tokens=1, new_tokens=1),
        target_s={"realtime": 1.0, "interactive": 5.0, "standard": 30.0, "batch": 600.0}[qos],
        alone_s=alone,
        cost_s=alone,
        first_s=None if wait is None else at + wait,
        end_s=None if wait is None else at + wait + 1,
        device_s=device,
        **fate,
    )


def summary(jobs):
    return summarize(jobs, busy_s=4.0, workers=2)


def test_every_job_counts():
    found = summary(
        [
            job(wait=0.5),
            job(wait=3.0),
            job(wait=None, refused=True),
            job(wait=9.0, relegated=True),
            job("standard", wait=7.5),
            job("realtime", wait=1.5, alone=1.2),
        ]
    )
    assert found.mean_first_s == pytest.approx((0.5 + 3 + 9 + 7.5 + 1.5) / 5)
    assert found.mean_urgent_first_s == pytest.approx((0.5 + 3 + 9 + 1.5) / 4)
    assert (found.jobs, found.attainable, found.relegated, found.refused) == (6, 5, 1, 1)
    assert found.met == {"realtime": 0.25, "interactive": None, "standard": 1.0, "batch": None}
    assert (found.met_urgent, found.met_attainable, found.met_of_all) == (0.25, 0.4, pytest.approx(1 / 3))
    assert (found.p99_realtime_first_s, found.longest_kept_first_s, found.longest_first_s) == (3.0, 7.5, 9.0)


def test_throughput_and_utilization_are_over_the_whole_time():
    found = summary([job(at=2.0, wait=1.0), job(at=4.0, wait=3.0)])
    assert found.throughput_per_s == pytest.approx(2 / 6)
    assert found.utilization == pytest.approx(4 / (2 * 8))


def test_fairness_is_over_device_time_until_the_last_arrival():
    jobs = [
        job(at=0.0, tenant="a", device=3.0),
        job(at=0.0, tenant="b", device=1.0),
        job(at=10.0, tenant="b", device=5.0),
    ]
    assert summary(jobs).fairness == pytest.approx(16 / (2 * 10))
    assert summarize(jobs, busy_s=1, workers=1, weights={"a": 3.0}).fairness == pytest.approx(1.0)
    assert shares_of_demand(jobs) == {"a": 1.0, "b": pytest.approx(1 / 6)}


def test_percentiles_are_values_that_occurred():
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.99), percentile(values, 0.5), percentile([], 0.5)) == (99.0, 50.0, None)
    assert (percentile([7.0], 0.99), percentile([1.0, 2.0], 0.5)) == (7.0, 1.0)


def test_jains_index():
    assert (jain([2.0, 2.0]), jain([1.0, 0.0]), jain([]), jain([0.0])) == (1.0, 0.5, None, None)
