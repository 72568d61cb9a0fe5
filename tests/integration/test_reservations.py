"""Memory: what fits goes, what is large isn't passed over for ever, and each class leaves room for the more urgent."""

from __future__ import annotations

import pytest

from ccs_broker.ledger import Blocked, Claim, NotClaimed
from tests.claiming import Desk, room

pytestmark = pytest.mark.redis


@pytest.fixture
def desk(redis_url: str):
    with Desk(redis_url) as found:
        yield found


def test_the_best_that_fits_is_taken_and_the_best_that_does_not_is_named(desk: Desk) -> None:
    desk.publish("big", "realtime", memory=700)
    desk.publish("small", "batch", memory=10)
    claim = desk.claim(room=room(600))
    assert isinstance(claim, Claim)
    assert claim.id == "small"
    missed = desk.claim(room=room(600))
    assert isinstance(missed, NotClaimed)
    assert missed.blocked == Blocked(id="big", rank=0, score=10 * 55_000, need_bytes=700)
    assert desk.redis.llen("ccs.text:1") == 1
    assert desk.claim(room=room(700)).id == "big"


@pytest.mark.parametrize(
    ("qos", "most"), [("realtime", 1000), ("interactive", 950), ("standard", 850), ("batch", 750)]
)
def test_each_class_leaves_memory_to_the_more_urgent(desk: Desk, qos: str, most: int) -> None:
    desk.publish("job", qos, memory=500)
    assert isinstance(desk.claim(room=room(1499 - most)), NotClaimed)
    assert desk.claim(room=room(1500 - most)).id == "job"


def test_what_fits_nowhere_is_no_reason_to_wait(desk: Desk) -> None:
    desk.publish("giant", "realtime", memory=1001)
    desk.publish("small", memory=10)
    desk.claim(room=room(500))
    desk.go(10)
    desk.publish("next", memory=10)
    assert desk.claim(room=room(500)).id == "next"
    assert desk.redis.hget("ccs:job:giant", "passed") is None


@pytest.mark.parametrize(("qos", "most_claims"), [("interactive", 30), ("standard", 310)])
def test_a_big_job_at_the_head_is_served_though_small_ones_keep_coming(
    desk: Desk, qos: str, most_claims: int
) -> None:
    """Small jobs hold the memory in turn; after two seconds of being passed over (thirty below
    interactive) the big one gets what falls free."""
    running: list[Claim] = []
    claims = 0
    for number in range(10):
        desk.publish(f"first{number}", memory=80)
        running.append(desk.claim(room=room(1000 - 80 * number)))
    desk.publish("big", qos, memory=700, tenant="big", overload="accept")
    number = 0
    while claims < 500:
        desk.publish(f"small{number}", memory=80, tenant=f"t{number}")
        number += 1
        desk.finish(running.pop(0))
        desk.go(0.1)
        while (claim := desk.claim(room=room(1000 - 80 * len(running)))) is not None:
            if isinstance(claim, NotClaimed):
                break
            claims += 1
            if claim.id == "big":
                break
            running.append(claim)
        if isinstance(claim, Claim) and claim.id == "big":
            break
    assert isinstance(claim, Claim)
    assert claim.id == "big"
    assert claims <= most_claims
    assert desk.redis.hget("ccs:job:big", "passed") is None


def test_while_memory_is_kept_only_better_jobs_and_other_workers_go_on(desk: Desk) -> None:
    desk.publish("big", "interactive", memory=800, overload="accept")
    desk.publish("worse", "batch", memory=10)
    assert desk.claim(room=room(500)).id == "worse"
    desk.go(2)
    desk.publish("worse2", "batch", memory=10)
    kept = desk.claim(room=room(500))
    assert isinstance(kept, NotClaimed)
    assert (desk.redis.hget("ccs:job:big", "holder"), kept.blocked.id) == (b"w", "big")
    desk.publish("better", "realtime", memory=10)
    assert desk.claim(room=room(500)).id == "better"
    assert desk.claim(room=room(500), worker="other").id == "worse2"
    desk.publish("worse3", "batch", memory=10)
    # The holder doesn't come back within five seconds: another keeps its memory instead.
    desk.go(5)
    assert isinstance(desk.claim(room=room(500), worker="other"), NotClaimed)
    assert desk.redis.hget("ccs:job:big", "holder") == b"other"
    assert desk.claim(room=room(800), worker="other").id == "big"


def test_the_floor_takes_no_memory_that_is_kept(desk: Desk) -> None:
    desk.publish("big", "interactive", memory=800, overload="accept")
    for number in range(30):
        desk.publish(f"other{number}", memory=1, cost_s=1, first_s=0.1, tenant=f"t{number}")
    desk.claim(room=room(500))
    desk.publish("aged", "batch", memory=10, cost_s=0.01, first_s=0.5)
    desk.claim(room=room(500))
    assert int(desk.redis.hget("ccs:share", "floor")) > 10_000
    desk.go(2)
    assert isinstance(desk.claim(room=room(500)), NotClaimed)
    assert desk.claim(room=room(500), worker="free").floor


def test_a_need_is_linear_in_what_is_known_of_a_job(desk: Desk) -> None:
    """Coefficients of 1, prompt characters, new tokens, images and media bytes, by queue and model."""
    desk.publish("job", "realtime", model="a", memory=100)
    desk.redis.hset("ccs:job:job", "sizes", "1000 20 3 100")
    tight = room(0)
    for need, fits in (((1, 0.5, 2, 10, 1), 671), ((0.2, 0, 0, 0, 0), 1), ((0, 0, 0, 0, 0), 0)):
        needs = {("ccs.text", "a"): tuple(map(float, need)), ("ccs.text", ""): (999.0,) * 5}
        wish = {
            "models": ("a-b", "a"),
            "room": type(tight)(free_bytes=fits - 1, total_bytes=1000, need=needs),
        }
        if fits:
            assert isinstance(desk.claim(**wish), NotClaimed)
    assert desk.claim(**wish).id == "job"
