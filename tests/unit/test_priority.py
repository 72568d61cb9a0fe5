"""The calculator's own rules; what the scripts make of them is compared elsewhere."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Overload, QosClass
from ccs_broker.errors import ConfigurationError
from ccs_broker.policy import BALANCED, CLASS, EDF, FIFO, POLICIES
from ccs_broker.priority import (
    BAND_US,
    Work,
    late_after_us,
    qos_of_celery_priority,
    qos_of_rank,
    rank_of,
    relegated_score,
    score,
    urgency,
)
from ccs_broker.settings import LedgerSettings, ledger_settings

SHORT, LONG = Work(first_us=10_000, cost_us=20_000), Work(first_us=900_000, cost_us=2_000_000)


def test_classes_weigh_the_work():
    scores = [score(urgency(qos, None), SHORT, 0) for qos in QosClass]
    assert scores == [150_000, 300_000, 1_200_000, 2_400_000]
    assert relegated_score(urgency(QosClass.REALTIME, None), SHORT, 7) == 7 + 320 * 15_000


def test_an_earlier_deadline_weighs_less_down_to_the_class_above():
    def factor(deadline_s):
        return urgency(QosClass.STANDARD, deadline_s).factor

    assert factor(None) == factor(30) == factor(99) == 80
    assert 20 < factor(10) < 80
    assert factor(5) == pytest.approx(20)
    assert factor(0.01) == 20
    assert urgency(QosClass.REALTIME, 0.1).factor == 10
    assert urgency(QosClass.STANDARD, 10).target_us == 10_000_000


def test_the_other_policies_order_as_they_say():
    def order(policy, jobs):
        return sorted(jobs, key=lambda job: score(urgency(job[0], job[1], policy=policy), job[2], job[3]))

    late = (QosClass.REALTIME, None, LONG, 2_000_000)
    early = (QosClass.BATCH, 5.0, SHORT, 1_000_000)
    assert order(FIFO, [late, early]) == [early, late]
    assert order(CLASS, [early, late]) == [late, early]
    assert order(EDF, [early, late]) == [late, early]
    assert urgency(QosClass.BATCH, None, policy=CLASS).rank_us == 3 * BAND_US
    assert not any(policy.relegates or policy.floor for policy in (FIFO, CLASS, EDF))


def test_late_is_when_a_twentieth_of_the_target_can_not_be_kept():
    assert late_after_us(urgency(QosClass.REALTIME, None), LONG) == 50_000
    assert late_after_us(urgency(QosClass.STANDARD, 10), SHORT) == 9_490_000


def test_who_accepts_to_be_late_is_never_relegated():
    assert urgency(QosClass.REALTIME, None).relegates
    assert urgency(QosClass.REALTIME, None, overload=Overload.REFUSE).relegates
    assert not urgency(QosClass.REALTIME, None, overload=Overload.ACCEPT).relegates


def test_ranks_and_celery_priorities():
    assert [qos_of_rank(rank_of(qos)) for qos in QosClass] == list(QosClass)
    found = [qos_of_celery_priority(p).value[0] for p in (1, 3, 4, 5, 6, 7, 8, 9, 0, 10, None, True)]
    assert "".join(found) == "rriissbbssss"


def test_policies_are_named_and_shared():
    assert ledger_settings(environ={}).scheduling is BALANCED
    found = ledger_settings(environ={"CCS_POLICY": "edf", "CCS_QUEUE_LIMIT": "7"})
    assert (found.scheduling, found.queue_limit) == (EDF, 7)
    assert {LedgerSettings(policy=name).scheduling.name for name in POLICIES} == set(POLICIES)
    for environ in ({"CCS_POLICY": "x"}, {"CCS_QUEUE_LIMIT": "0"}, {"CCS_QUEUE_LIMIT": "many"}):
        with pytest.raises(ConfigurationError, match=next(iter(environ.values()))):
            ledger_settings(environ=environ)
