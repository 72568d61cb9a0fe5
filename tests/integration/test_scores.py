"""The scripts' scores are the calculator's, to the last bit, under every policy."""

from __future__ import annotations

import math
import random

import pytest
import redis

from ccs_broker.contract import Overload, QosClass
from ccs_broker.ledger import Entry, Ledger, Sizes
from ccs_broker.policy import POLICIES
from ccs_broker.priority import EPOCH_US, Work, late_after_us, relegated_score, score, urgency
from ccs_broker.scripts import virtual_time_scripts
from ccs_broker.settings import LedgerSettings

pytestmark = pytest.mark.redis
NOW_US = 1_900_000_000_123_456
STANDARD = Work(first_us=50_000, cost_us=200_000)


def coefficients(pick: random.Random) -> list[float]:
    return [pick.choice((0.0, pick.random() * 10**e)) for e in (5, 1, 4, 5, -1)]


def expected(values: list[float], sizes: Sizes) -> int:
    return math.floor(sum(c * x for c, x in zip(values, (1, *sizes.values()), strict=True)))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_scores_equal_the_calculators(redis_url: str, policy) -> None:
    pick = random.Random(policy.name)
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.set("ccs:clock", NOW_US)
        ledger = Ledger(client, LedgerSettings(policy=policy.name), virtual_time_scripts())
        for number in range(250):
            model, work = pick.choice(("", "m")), None
            sizes = Sizes(
                prompt_chars=pick.randrange(10**6), new_tokens=pick.randrange(32768),
                images=pick.randrange(20), media_bytes=pick.randrange(10**8),
            )  # fmt: skip
            if pick.random() < 0.5:
                first = pick.randrange(1, 10 ** pick.randrange(1, 11))
                work = Work(first_us=first, cost_us=first + pick.randrange(10**9))
            first, cost = coefficients(pick), coefficients(pick)
            taught = pick.random() < 0.7
            client.delete(f"ccs:work:ccs.text:{model}")
            if taught:
                ledger.teach("ccs.text", model, first, cost)
            overload = pick.choice((Overload.RELEGATE, Overload.ACCEPT))
            deadline_s = pick.choice((None, 10 ** pick.uniform(-3, 5)))
            urgent = urgency(pick.choice(list(QosClass)), deadline_s, policy=policy, overload=overload)
            ledger.publish(
                Entry(id=f"j{number}", queue="ccs.text", payload=b"{}", urgency=urgent, model=model, work=work,
                      sizes=sizes, tenant=f"t{number}", overload=overload, delay_ms=pick.choice((0, 5)))
            )  # fmt: skip
            job = client.hgetall(f"ccs:job:j{number}")
            if work is None:
                work = STANDARD
                if taught:
                    us = max(1, expected(first, sizes))
                    work = Work(first_us=us, cost_us=max(us, expected(cost, sizes)))
            base = 0 if policy.fair else NOW_US - EPOCH_US
            assert (int(job["first_us"]), int(job["cost_us"])) == (work.first_us, work.cost_us)
            assert int(job["tag"]) == base
            assert int(job["score"]) == score(urgent, work, base) < 2**53
            late = urgent.relegates and late_after_us(urgent, work) // 1000 <= 0
            assert job.get("relegated") == ("1" if late else None)
            if urgent.relegates:
                assert int(job["low"]) == relegated_score(urgent, work, base)
