"""The waiting room against an independent model, on random sequences of everything that can happen to a job."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis

from ccs_broker import topology
from ccs_broker.contract import Overload, QosClass
from ccs_broker.contract.outcome import OutcomeState
from ccs_broker.ledger import Claim, ClaimWish, Ending, Entry, Ledger, NotClaimed
from ccs_broker.priority import Work
from ccs_broker.scripts import virtual_time_scripts
from ccs_broker.settings import LedgerSettings
from tests.helpers import leaked_keys
from tests.waiting_room import CLASSES, Guest, WaitingRoom

pytestmark = pytest.mark.redis

QUEUES = ("ccs.text", "ccs.vision")
MODELS = ("", "", "a", "b")
TENANTS = ("acme", "zeta", "default")
START_MS = 1_800_000_000_000


class Pair:
    """The ledger under a clock of the test's own, and the model of it."""

    def __init__(self, url: str, seed: int) -> None:
        self.redis = redis.Redis.from_url(url)
        self.ledger = Ledger(self.redis, LedgerSettings(lease_s=1e6), virtual_time_scripts())
        self.room = WaitingRoom()
        self.random = random.Random(seed)
        self.count = 0
        self.go_to(START_MS)

    def go_to(self, now_ms: int) -> None:
        self.room.pass_time(now_ms)
        self.redis.set("ccs:clock", now_ms * 1000)

    def weigh(self) -> None:
        tenant, weight = self.random.choice(TENANTS), self.random.choice((1.0, 2.0, 3.5, 0.25))
        self.room.weights[tenant] = weight
        assert self.ledger.weigh(tenant, weight)

    def publish(self) -> None:
        pick = self.random
        self.count += 1
        first = pick.choice((1, 700, 50_000, 900_000, 40_000_000))
        guest = Guest(
            id=f"{pick.getrandbits(64):016x}",
            queue=pick.choice(QUEUES),
            model=pick.choice(MODELS),
            qos=pick.choice(CLASSES),
            deadline_s=pick.choice((None, None, 0.4, 3.0, 20.0)),
            overload=pick.choice((Overload.RELEGATE, Overload.RELEGATE, Overload.ACCEPT)),
            tenant=pick.choice(TENANTS),
            work=Work(first_us=first, cost_us=first + pick.randrange(2_000_000)),
            tag=0,
            submitted_ms=self.room.now_ms,
            expire_ms=0,
            late_ms=0,
            relegated=False,
        )
        life_ms = int((guest.deadline_s or 3600) * 1000)
        guest.expire_ms = self.room.now_ms + life_ms
        entry = Entry(
            id=guest.id,
            queue=guest.queue,
            model=guest.model,
            urgency=guest.urgent,
            payload=b"{}",
            expire_ms=life_ms,
            tenant=guest.tenant,
            overload=guest.overload,
            work=guest.work,
        )
        assert self.ledger.publish(entry).status == "ok"
        self.room.publish(guest)

    def claim(self) -> None:
        queues = self.random.choice((QUEUES, QUEUES[:1], QUEUES[1:]))
        models = self.random.choice((("a",), ("a", "b"), ("b",)))
        popped = self.random.choice(queues)
        if any(guest.expire_ms <= self.room.now_ms for guest in self.room.waiting()):
            # A claim ends only the expired ones that it meets; which these are is no matter here.
            self.ledger.sweep()
            self.room.sweep()
        if self.redis.rpop(topology.tickets_of(popped)) is None:
            return
        self.room.relegate()
        expected, floor = self.room.choose(queues, models)
        got = self.ledger.claim(ClaimWish(popped=popped, queues=queues, worker="w", models=models))
        if expected is None:
            assert isinstance(got, NotClaimed)
            return
        assert isinstance(got, Claim)
        assert (got.id, got.floor, got.score) == (expected.id, floor, expected.score)
        assert (got.cost_us, got.first_us) == (expected.work.cost_us, expected.work.first_us)
        assert (got.rank, got.relegated) == (CLASSES.index(expected.qos), expected.relegated)
        self.room.claim(expected, queues)
        assert got.attempt == expected.attempt

    def finish(self) -> None:
        if running := self.room.running():
            guest = self.random.choice(running)
            actual = self.random.randrange(3_000_000)
            ending = Ending(state=OutcomeState.SUCCEEDED, outcome="{}", actual_us=actual)
            assert self.ledger.finish(guest.id, guest.attempt, ending)
            self.room.finish(guest, actual)

    def release(self) -> None:
        # One whose deadline has passed ends at the next claim that meets it, or within a minute.
        if running := [guest for guest in self.room.running() if guest.expire_ms > self.room.now_ms]:
            guest = self.random.choice(running)
            assert self.ledger.release(guest.id, guest.attempt)
            guest.state = "waiting"

    def cancel(self) -> None:
        if waiting := self.room.waiting():
            guest = self.random.choice(waiting)
            assert self.ledger.cancel(guest.id) == "cancelled"
            self.room.leave(guest, "done")

    def reprioritize(self) -> None:
        if waiting := self.room.waiting():
            guest = self.random.choice(waiting)
            self.room.reprioritize(guest, self.random.choice(CLASSES))
            assert self.ledger.reprioritize(guest.id, guest.urgent) == "ok"

    def sweep(self) -> None:
        self.go_to(self.room.now_ms + self.random.choice((10, 300, 2000, 40_000)))
        self.ledger.sweep()
        self.room.sweep()

    def check(self) -> None:
        room = self.room
        waiting = room.waiting()
        for queue in QUEUES:
            here = {g.id.encode(): float(g.score) for g in waiting if g.queue == queue}
            assert dict(self.redis.zrange(topology.WAITING + queue, 0, -1, withscores=True)) == here
            assert self.redis.llen(topology.tickets_of(queue)) == len(here)
            for model in set(MODELS):
                lane = {
                    g.id.encode(): float(g.score) for g in waiting if (g.queue, g.model) == (queue, model)
                }
                assert dict(self.redis.zrange(topology.lane_of(queue, model), 0, -1, withscores=True)) == lane
            aged = {g.id.encode(): float(g.submitted_ms) for g in waiting if g.queue == queue and g.aged}
            assert dict(self.redis.zrange(f"ccs:aged:{queue}", 0, -1, withscores=True)) == aged
        load = {name.decode(): int(value) for name, value in self.redis.hgetall(topology.LOAD).items()}
        assert sum(v for k, v in load.items() if k[0] == "h") == sum(g.work.cost_us for g in waiting)
        buckets = Counter()
        for guest in waiting:
            buckets[f"h{max(0, (guest.score - guest.tag).bit_length() - 1)}"] += guest.work.cost_us
        assert {k: v for k, v in load.items() if k[0] == "h" and v} == {k: v for k, v in buckets.items() if v}
        assert load.get("run", 0) == sum(g.work.cost_us for g in room.running())
        for queue in QUEUES:
            late = sum(g.queue == queue and g.relegated for g in waiting)
            assert load.get(topology.relegated_field(queue), 0) == late
        tenants = Counter(g.tenant for g in waiting)
        found = {k.decode(): int(v) for k, v in self.redis.hgetall(topology.TENANTS_WAITING).items()}
        assert found == tenants
        share = {k.decode(): float(v) for k, v in self.redis.hgetall(topology.SHARE).items()}
        assert share.get("v", 0) == room.virtual
        assert share.get("w", 0) == pytest.approx(sum(map(room.weight, tenants)))
        assert share.get("floor", 0) == pytest.approx(room.credit, abs=1)
        room.credit = int(share.get("floor", 0))


@pytest.mark.parametrize("seed", range(4))
def test_random_sequences_leave_the_room_as_the_model_has_it(redis_url: str, seed: int) -> None:
    pair = Pair(redis_url, seed)
    steps = {
        pair.publish: 40, pair.claim: 35, pair.finish: 20, pair.release: 8, pair.cancel: 4,
        pair.reprioritize: 6, pair.sweep: 5, pair.weigh: 2,
    }  # fmt: skip
    for _ in range(400):
        pair.random.choices(list(steps), list(steps.values()))[0]()
        pair.check()
    told = {guest.id: guest.told for guest in pair.room.guests.values()}
    for job_id, times in told.items():
        events = [
            fields.get(b"d", b"")
            for _, fields in pair.redis.xrange(topology.LOG + job_id)
            if fields[b"k"] == b"queued"
        ]
        assert len(events) == 1 + times, events
    for guest in pair.room.running():
        pair.ledger.finish(guest.id, guest.attempt, Ending(state=OutcomeState.SUCCEEDED, outcome="{}"))
    for guest in pair.room.waiting():
        assert pair.ledger.cancel(guest.id) == "cancelled"
    pair.redis.delete("ccs:clock")
    assert leaked_keys(pair.redis) == []
    assert int(pair.redis.hget(topology.LOAD, "run")) == 0
    pair.redis.close()


def test_a_raised_job_that_can_be_in_time_again_is_relegated_no_longer(redis_url: str) -> None:
    pair = Pair(redis_url, 0)
    guest = Entry(
        id="slow", queue="ccs.text", payload=b"{}", work=Work(first_us=2_000_000, cost_us=2_000_000),
        urgency=Guest.urgent.fget(_guest(QosClass.REALTIME)),
    )  # fmt: skip
    pair.ledger.publish(guest)
    assert pair.redis.hget("ccs:job:slow", "relegated") == b"1"
    assert pair.ledger.reprioritize("slow", _guest(QosClass.STANDARD).urgent) == "ok"
    assert pair.redis.hget("ccs:job:slow", "relegated") == b"0"
    data = [fields.get(b"d") for _, fields in pair.redis.xrange("ccs:log:slow")]
    assert data == [b'{"relegated":true,"reason":"late"}', b'{"relegated":false}']
    pair.ledger.cancel("slow")
    pair.redis.close()


def _guest(qos: QosClass) -> Guest:
    return Guest(
        id="x", queue="ccs.text", model="", qos=qos, deadline_s=None, overload=Overload.RELEGATE, tenant="t",
        work=Work(first_us=1, cost_us=1), tag=0, submitted_ms=0, expire_ms=0, late_ms=0, relegated=False,
    )  # fmt: skip
