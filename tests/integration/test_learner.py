"""The learner against a real server: workers add up, outages lose nothing, a changed device is noticed."""

from __future__ import annotations

import random
import threading
from contextlib import closing

import pytest
import redis
from redis.exceptions import RedisError

from ccs_broker.ledger import Ledger, Sizes
from ccs_workers.scheduling.learner import Learner

LANE = ("ccs.text", "")
FAR = Sizes(prompt_chars=1000, new_tokens=50)


@pytest.fixture
def ledger(redis_url):
    with closing(redis.Redis.from_url(redis_url, socket_timeout=1)) as client:
        yield Ledger(client)


def took(sizes, speed=1.0):
    return speed * (0.05 + 1e-4 * sizes.prompt_chars + 0.01 * sizes.new_tokens)


def feed(learner, rng, jobs, speed=1.0):
    for _ in range(jobs):
        sizes = Sizes(prompt_chars=rng.randrange(10, 4000), new_tokens=rng.randrange(1, 200))
        device_s = took(sizes, speed) * rng.uniform(0.9, 1.1)
        learner.add(LANE, sizes, first_s=device_s / 2, device_s=device_s)


def expected_s(ledger, sizes, kind="c"):
    work = ledger.redis.hgetall("ccs:work:ccs.text:")
    values = [float(work[f"{kind}{place}".encode()]) for place in range(5)]
    return sum(value * size for value, size in zip(values, (1, *sizes.values()), strict=True)) / 1e6


@pytest.mark.usefixtures("no_key_leaks")
def test_what_several_workers_saw_is_one_knowledge(ledger):
    rng, learners = random.Random(1), [Learner(ledger) for _ in range(3)]
    for learner in learners:
        feed(learner, rng, 40)
    threads = [threading.Thread(target=learner.push) for learner in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(ledger.redis.hget("ccs:stats:ccs.text:", "c0")) == pytest.approx(120, abs=0.1)
    assert expected_s(ledger, FAR) == pytest.approx(took(FAR), rel=0.1)
    assert expected_s(ledger, FAR, "f") == pytest.approx(took(FAR) / 2, rel=0.1)
    # Who comes later begins with what all have learnt, as soon as it has told something.
    late = Learner(ledger)
    feed(late, rng, 1)
    late.push()
    feed(late, rng, 50)
    assert late.errors()[LANE].cost < 0.1
    assert late.errors()[LANE].jobs == 51
    assert learners[0].errors() == {}


def test_an_outage_loses_no_sample(ledger, redis_url):
    rng = random.Random(2)
    with closing(redis.Redis(host="127.0.0.1", port=1, socket_timeout=0.2)) as nowhere:
        learner = Learner(Ledger(nowhere))
        feed(learner, rng, 30)
        with pytest.raises((RedisError, OSError)):
            learner.push()
        learner.close()
        learner._ledger = ledger
        feed(learner, rng, 5)
        learner.close()
    assert float(ledger.redis.hget("ccs:stats:ccs.text:", "c0")) == pytest.approx(35)


def test_a_model_that_became_slower_is_noticed_within_a_few_rounds(ledger):
    rng, learner = random.Random(3), Learner(ledger)
    for _ in range(20):
        feed(learner, rng, 50)
        learner.push()
    assert learner.errors()[LANE].cost < 0.1
    for _ in range(6):
        feed(learner, rng, 50, speed=8.0)
        learner.push()
    assert expected_s(ledger, FAR) == pytest.approx(took(FAR, 8.0), rel=0.15)
