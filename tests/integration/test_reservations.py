"""Memory: what fits goes, what is large isn't passed over for ever, and each class leaves room for the more urgent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccs_broker.ledger import Blocked, Claim, Need, NotClaimed, Pool, Room
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


@pytest.mark.parametrize(("qos", "share"), [("interactive", 950), ("standard", 850), ("batch", 750)])
def test_a_job_larger_than_its_class_s_share_takes_all_that_is_free(desk: Desk, qos: str, share: int) -> None:
    """On an idle worker nothing is gained by keeping memory free of the only job that wants it."""
    desk.publish("large", qos, memory=share + 1, overload="accept")
    assert isinstance(desk.claim(room=room(share)), NotClaimed)
    assert desk.claim(room=room(share + 1)).id == "large"


def test_a_job_larger_than_all_memory_is_tried_at_once_where_no_other_worker_lives(desk: Desk) -> None:
    desk.redis.zadd("ccs:workers", {"w": desk.now_ms + 1000, "gone": desk.now_ms - 1})
    desk.publish("giant", memory=5000)
    missed = desk.claim(room=room(900))
    assert isinstance(missed, NotClaimed)
    assert missed.blocked is not None
    assert desk.claim(room=room(1000)).id == "giant"


def test_what_fits_nowhere_holds_nobody_up_and_gets_everything_in_the_end(desk: Desk) -> None:
    desk.redis.zadd("ccs:workers", {"w": desk.now_ms + 60_000, "other": desk.now_ms + 60_000})
    desk.publish("giant", "realtime", memory=1001, overload="accept")
    desk.publish("small", memory=10)
    desk.claim(room=room(500))
    desk.go(10)
    desk.publish("next", memory=10)
    assert desk.claim(room=room(500)).id == "next"
    # Nobody else took it: it may have all there is, as any job that waits for memory.
    desk.go(21)
    desk.publish("later", memory=10)
    missed = desk.claim(room=room(500))
    assert isinstance(missed, NotClaimed)
    assert missed.blocked == Blocked(id="giant", rank=0, score=10 * 55_000, need_bytes=1000)
    assert desk.claim(room=room(1000)).id == "giant"


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
    for need, fits in (((1, 0.5, 2, 10, 1), 671), ((0.2, 0, 0, 0, 0), 1), ((0, 0, 0, 0, 0), 0)):
        needs = {
            ("ccs.text", "a"): Need(coefficients=tuple(map(float, need))),
            ("ccs.text", ""): Need(coefficients=(999.0,) * 5),
        }
        wish = {
            "models": ("a-b", "a"),
            "room": Room(pools=(Pool(free_bytes=fits - 1, total_bytes=1000),), need=needs),
        }
        if fits:
            assert isinstance(desk.claim(**wish), NotClaimed)
    assert desk.claim(**wish).id == "job"


def pooled(free: int, own: int, *, served: bool = True) -> Room:
    """A device's memory, and a pool of 100 bytes that jobs of model "a" have to themselves."""
    need = Need(coefficients=(0.0, 0.0, 0.0, 0.0, 1.0))
    return Room(
        pools=(Pool(free_bytes=free, total_bytes=1000), Pool(free_bytes=own, total_bytes=100)),
        need={
            ("ccs.text", "a"): replace(need, pool=1) if served else None,
            ("ccs.text", "b"): need,
            ("ccs.text", ""): need,
        },
    )


def test_each_pool_is_a_room_of_its_own(desk: Desk) -> None:
    desk.publish("own", "realtime", model="a", memory=60)
    desk.publish("shared", "standard", model="b", memory=600)
    assert desk.claim(room=pooled(free=1000, own=50), models=("a", "b")).id == "shared"
    assert desk.claim(room=pooled(free=0, own=60), models=("a", "b")).id == "own"


def test_memory_is_kept_for_a_job_in_its_own_pool_only(desk: Desk) -> None:
    desk.publish("big", "realtime", model="a", memory=90, overload="accept")
    assert isinstance(desk.claim(room=pooled(free=1000, own=10), models=("a", "b")), NotClaimed)
    desk.go(3)
    desk.publish("small", "realtime", model="a", memory=5)
    desk.publish("other", "batch", model="b", memory=100)
    assert desk.claim(room=pooled(free=1000, own=10), models=("a", "b")).id == "other"
    missed = desk.claim(room=pooled(free=1000, own=10), models=("a", "b"))
    assert isinstance(missed, NotClaimed)
    assert missed.blocked is not None
    assert missed.blocked.id == "big"
    assert desk.claim(room=pooled(free=0, own=90), models=("a", "b")).id == "big"


def test_jobs_of_a_model_that_is_not_loaded_wait_and_hold_nobody_up(desk: Desk) -> None:
    desk.publish("absent", "realtime", model="a", memory=5)
    for number in range(40):
        desk.publish(f"also{number}", "realtime", model="a", memory=5)
    desk.publish("present", "batch", memory=5)
    assert desk.claim(room=pooled(free=1000, own=100, served=False), models=("a", "b")).id == "present"
    assert isinstance(
        desk.claim(room=pooled(free=1000, own=100, served=False), models=("a", "b")), NotClaimed
    )
    assert desk.redis.hget("ccs:job:absent", "passed") is None
    assert desk.claim(room=pooled(free=1000, own=100), models=("a", "b")).id == "absent"


def test_the_default_model_may_be_absent_while_named_ones_serve(desk: Desk) -> None:
    desk.publish("nameless", "realtime", memory=5)
    desk.publish("named", "batch", model="b", memory=5)
    here = pooled(free=1000, own=100)
    absent = replace(here, need={**here.need, ("ccs.text", ""): None})
    assert desk.claim(room=absent, models=("a", "b")).id == "named"
    assert isinstance(desk.claim(room=absent, models=("a", "b")), NotClaimed)
    assert desk.claim(room=here, models=("a", "b")).id == "nameless"


@pytest.mark.parametrize("flood", [100, 600])
def test_a_flood_that_one_pool_does_not_hold_hides_nothing_from_another(desk: Desk, flood: int) -> None:
    """However many better jobs wait for the other pool."""
    for number in range(flood):
        desk.publish(f"flood{number}", "realtime", model="a", memory=50, overload="accept", first_s=1e-4)
    desk.publish("other", "batch", model="b", memory=5)
    assert desk.claim(room=pooled(free=1000, own=10), models=("a", "b")).id == "other"
    assert isinstance(desk.claim(room=pooled(free=1000, own=10), models=("a", "b")), NotClaimed)


def test_a_claim_looks_at_so_many_jobs_of_a_pool_and_no_further(desk: Desk) -> None:
    """What lies far behind jobs that lack memory would only fill what they wait for."""
    for number in range(32):
        desk.publish(f"big{number}", "realtime", memory=500, overload="accept")
    desk.publish("small", "batch", memory=5)
    assert isinstance(desk.claim(room=room(400)), NotClaimed)
    assert desk.claim(room=room(500)).id == "big0"
    assert desk.claim(room=room(400)).id == "small"
