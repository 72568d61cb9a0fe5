"""Who gets the next slot: tenants by weight, classes by urgency, and nobody never."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count

import pytest

from ccs_broker.ledger import Claim
from tests.claiming import Desk

pytestmark = pytest.mark.redis


@pytest.fixture
def desk(redis_url: str):
    with Desk(redis_url) as found:
        yield found


@pytest.mark.parametrize("served_before", [0, 137])
@pytest.mark.parametrize("qos", ["realtime", "standard", "batch"])
def test_after_a_flood_of_another_tenant_a_job_starts_within_three_claims(
    desk: Desk, qos: str, served_before: int
) -> None:
    for number in range(1000):
        desk.publish(f"flood{number}", qos, tenant="flood")
    desk.claims(served_before)
    desk.publish("one", qos, tenant="other")
    assert "one" in desk.claims(3)


def test_weights_of_three_to_one_give_thirty_of_forty(desk: Desk) -> None:
    desk.ledger.weigh("heavy", 3.0)
    for number in range(60):
        for tenant in ("heavy", "light"):
            desk.publish(f"{tenant}-{number}", tenant=tenant, first_s=0.05, cost_s=0.4)
    shares = Counter(job_id.split("-")[0] for job_id in desk.claims(40))
    assert 28 <= shares["heavy"] <= 32


def test_a_weight_counts_at_once_for_what_waits(desk: Desk) -> None:
    for number in range(3):
        desk.publish(f"a{number}", tenant="a")
    desk.ledger.weigh("a", 2.5)
    assert float(desk.redis.hget("ccs:share", "w")) == 2.5
    desk.publish("b", tenant="b")
    desk.ledger.weigh("a", 1.0)
    assert float(desk.redis.hget("ccs:share", "w")) == 2.0
    assert desk.redis.exists("ccs:weights") == 0


def test_shares_are_of_device_time_and_not_of_jobs(desk: Desk) -> None:
    for number in range(200):
        desk.publish(f"big-{number}", tenant="big", first_s=0.05, cost_s=2.0)
        desk.publish(f"small-{number}", tenant="small", first_s=0.05, cost_s=0.2)
    shares = Counter(job_id.split("-")[0] for job_id in desk.claims(110))
    assert shares["small"] == pytest.approx(100, abs=3)


def test_what_a_job_really_took_is_charged(desk: Desk) -> None:
    """A tenant whose jobs take ten times as long as expected gets a tenth of the jobs, once that is known."""
    for number in range(30):
        desk.publish(f"sly-{number}", tenant="sly", cost_s=0.2)
        desk.publish(f"fair-{number}", tenant="fair", cost_s=0.2)
    for _ in range(4):
        claim = desk.claim()
        assert isinstance(claim, Claim)
        desk.finish(claim, actual_us=2_000_000 if claim.id.startswith("sly") else 200_000)
    desk.publish("sly-late", tenant="sly", cost_s=0.2)
    desk.publish("fair-late", tenant="fair", cost_s=0.2)
    tags = [int(desk.redis.hget(f"ccs:job:{name}-late", "tag")) for name in ("sly", "fair")]
    assert tags[0] - tags[1] == 2 * 1_800_000


@pytest.mark.parametrize("pieces", [1, 10])
def test_splitting_work_over_many_jobs_gains_nothing(desk: Desk, pieces: int) -> None:
    """The other tenant waits as long whether one of ten seconds comes in one piece or in ten."""
    for burst in range(20):
        for piece in range(pieces):
            desk.publish(f"split-{burst}-{piece}", tenant="split", first_s=0.01, cost_s=10 / pieces)
    for number in range(20):
        desk.publish(f"plain-{number}", tenant="plain", first_s=0.01, cost_s=10.0)
    used = Counter()
    while used["plain"] < 100:
        claim = desk.claim()
        assert isinstance(claim, Claim)
        used[claim.id.split("-")[0]] += claim.cost_us / 1e6
    assert used["split"] == pytest.approx(100, abs=11)


def test_idle_time_is_not_held_against_who_used_it(desk: Desk) -> None:
    """Work-conserving: alone on the device a tenant takes all of it, and starts level when others come."""
    for number in range(50):
        desk.publish(f"alone{number}", tenant="alone")
    desk.claims(50)
    for number in range(10):
        desk.publish(f"alone-{number}", tenant="alone")
        desk.publish(f"new-{number}", tenant="new")
    shares = Counter(job_id.split("-")[0] for job_id in desk.claims(10))
    assert shares == {"alone": 5, "new": 5}


def test_no_class_is_shut_out_however_long_urgent_jobs_keep_coming(desk: Desk) -> None:
    """An adversary keeps 20 urgent jobs of fresh tenants waiting; batch and relegated work gets its tenth."""
    pick, number = random.Random(5), count()
    waiting_urgent = 0
    for index in range(10):
        if index == 5:
            desk.publish("late", "realtime", tenant="c", first_s=2.0)
        desk.publish(f"batch{index}", "batch", tenant="b", first_s=0.2)
        desk.go(0.001)
    cost = Counter()
    order: list[str] = []
    for _ in range(3000):
        while waiting_urgent < 20:
            desk.publish(
                f"urgent{next(number)}", "realtime", tenant=f"t{pick.randrange(10**6)}", first_s=0.02
            )
            waiting_urgent += 1
        claim = desk.claim()
        assert isinstance(claim, Claim)
        kind = claim.id.rstrip("0123456789")
        order.append(kind)
        cost[kind] += claim.cost_us
        waiting_urgent -= kind == "urgent"
        desk.go(claim.cost_us / 1e6)
        desk.finish(claim)
        if cost["batch"] == 2_000_000:
            break
    assert "late" in order
    assert cost["batch"] + cost["late"] >= 0.09 * sum(cost.values())
    assert order.index("batch") < 300


@pytest.mark.parametrize("qos", ["standard", "batch"])
def test_a_job_is_overtaken_by_a_bounded_amount_of_work(desk: Desk, qos: str) -> None:
    """With the floor left out of it: newer urgent jobs begin at V, so they can't go before an old job for ever."""
    desk.publish("old", qos, tenant="old", first_s=0.1, overload="accept")
    factor = {"standard": 80, "batch": 160}[qos]
    bound_us = factor * 105_000 * 2
    before = 0
    for number in range(10_000):
        desk.publish(f"new{number}", "realtime", tenant="new", first_s=0.3, overload="accept")
        claim = desk.claim()
        assert isinstance(claim, Claim)
        if claim.id == "old":
            break
        before += claim.cost_us
    assert 0 < before <= bound_us + 300_000


def test_urgent_ones_first_at_equal_shares(desk: Desk) -> None:
    for qos in ("batch", "standard", "interactive", "realtime"):
        desk.publish(qos, qos, tenant=qos)
    assert desk.claims(4) == ["realtime", "interactive", "standard", "batch"]


def test_a_worker_of_one_model_is_not_blinded_by_a_thousand_jobs_of_another(desk: Desk) -> None:
    for number in range(1000):
        desk.publish(f"a{number}", "realtime", model="a")
    for number in range(20):
        desk.publish(f"ab{number}", "batch", model="a")
    desk.publish("b", model="b")
    desk.publish("any", "batch")
    desk.publish("bb", "batch", model="b")
    wish = {"models": ("b", "c")}
    assert desk.claims(3, **wish) == ["b", "any", "bb"]
    assert desk.claim(**wish).reason == "noroom"
    assert desk.claims(2, models=("a",))[0] == "a0"
