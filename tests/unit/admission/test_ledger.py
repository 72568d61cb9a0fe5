"""The memory ledger: nobody holds more than there is, and what was held comes back exactly once."""

from __future__ import annotations

import random
import threading
from typing import ClassVar

import pytest

from ccs_broker.ledger import Pool
from ccs_workers.admission.ledger import MemoryLedger
from ccs_workers.admission.records import Footprint

TEXT, EYES, EARS = ("ccs.text", ""), ("ccs.vision", ""), ("ccs.audio", "")
LANES = {TEXT: "talk", ("ccs.text", "talk"): "talk", EYES: "eyes", EARS: "ears"}
#: A byte for each new token.
PER_TOKEN = (0.0, 0.0, 1.0, 0.0, 0.0)


class Borrower:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def granted(self, memory_bytes):
        self.told.append(memory_bytes)

    def refused(self, need_bytes, most_bytes):
        self.told.append(("refused", need_bytes, most_bytes))

    def hand_back(self):
        self.told.append("back")


def sizes(tokens: int) -> tuple[int, int, int, int]:
    return 0, tokens, 0, 0


@pytest.fixture
def ledger() -> MemoryLedger:
    """1000 bytes: a text engine of 300, of which 200 are its pool, and an eye of 100."""
    found = MemoryLedger(1000, LANES)
    assert found.take("talk", Footprint(fixed_bytes=500))
    found.admit("talk", Footprint(fixed_bytes=300, pool_bytes=200), PER_TOKEN)
    assert found.take("eyes", Footprint(fixed_bytes=100))
    found.admit("eyes", Footprint(fixed_bytes=100), PER_TOKEN)
    return found


def test_an_engine_holds_its_footprint_before_it_loads_and_its_jobs_beside_it(ledger):
    room = ledger.room("ccs.vision", 1.0)
    assert room.pools == (
        Pool(free_bytes=600, total_bytes=600),
        Pool(free_bytes=200, total_bytes=200),
    )
    assert (room.need[TEXT].pool, room.need[EYES].pool, room.need[EARS]) == (1, 0, None)
    assert ledger.reserve(("a", 1), *EYES, sizes(250)) == 250
    assert ledger.reserve(("b", 1), *TEXT, sizes(50)) == 50
    assert [pool.free_bytes for pool in ledger.room("ccs.text", 1.0).pools] == [350, 150]
    assert not ledger.take("ears", Footprint(fixed_bytes=351))
    assert ledger.take("ears", Footprint(fixed_bytes=350))
    assert ledger.room("ccs.text", 1.0).pools[0] == Pool(free_bytes=0, total_bytes=250)
    # It takes no jobs before it is loaded.
    assert ledger.room("ccs.audio", 1.0).need[EARS] is None
    ledger.admit("ears", Footprint(fixed_bytes=200), PER_TOKEN)
    assert ledger.room("ccs.audio", 1.0).pools[0] == Pool(free_bytes=150, total_bytes=400)


def test_everything_comes_back_once(ledger):
    key = ("a", 1)
    ledger.reserve(key, *EYES, sizes(250))
    for _ in range(3):
        ledger.release(key)
    ledger.release(("unknown", 1))
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 600
    ledger.drop("eyes")
    ledger.drop("eyes")
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 700
    assert ledger.holdings().free_bytes == 700


def test_a_static_share_is_a_queue_s_own(ledger):
    ledger.reserve(("a", 1), *EYES, sizes(250))
    assert ledger.room("ccs.vision", 0.5).pools[0] == Pool(free_bytes=50, total_bytes=300)
    assert ledger.room("ccs.audio", 0.5).pools[0] == Pool(free_bytes=300, total_bytes=300)


def test_the_exact_need_takes_the_estimate_s_place(ledger):
    one = Borrower()
    ledger.reserve(("a", 1), *EYES, sizes(250))
    ledger.resize(("a", 1), 40, one)
    assert one.told == [40]
    assert ledger.reserved_bytes(("a", 1)) == 40
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 560
    ledger.resize(("a", 1), 600, one)
    assert one.told == [40, 600]
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 0


def test_a_larger_need_waits_for_room_ahead_of_new_claims(ledger):
    one = Borrower()
    ledger.reserve(("a", 1), *EYES, sizes(100))
    ledger.reserve(("b", 1), *EYES, sizes(400))
    ledger.resize(("a", 1), 300, one)
    assert one.told == []
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 0
    # The text engine's pool is another matter.
    assert ledger.room("ccs.text", 1.0).pools[1].free_bytes == 200
    ledger.release(("b", 1))
    assert one.told == [300]
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 300


def test_what_can_never_fit_is_refused_with_the_numbers(ledger):
    eye, talk = Borrower(), Borrower()
    ledger.reserve(("a", 1), *EYES, sizes(100))
    ledger.reserve(("b", 1), *TEXT, sizes(100))
    # Should all others go: the budget less the engine itself.
    ledger.resize(("a", 1), 901, eye)
    ledger.resize(("b", 1), 201, talk)
    assert eye.told == [("refused", 901, 900)]
    assert talk.told == [("refused", 201, 200)]


def test_two_that_wait_for_each_other_don_t(ledger):
    one, two = Borrower(), Borrower()
    ledger.reserve(("a", 1), *EYES, sizes(300))
    ledger.reserve(("b", 1), *EYES, sizes(300))
    ledger.resize(("a", 1), 400, one)
    assert one.told == []
    ledger.resize(("b", 1), 500, two)
    assert (one.told, two.told) == ([], ["back"])
    ledger.release(("b", 1))
    assert one.told == [400]


def test_a_claim_that_was_expected_to_need_more_than_all_gets_all(ledger):
    assert ledger.reserve(("a", 1), *TEXT, sizes(5000)) == 200
    assert ledger.room("ccs.text", 1.0).pools[1].free_bytes == 0


def test_an_engine_that_makes_room_takes_nothing_new_and_is_left_in_the_end(ledger):
    ledger.reserve(("a", 1), *TEXT, sizes(50))
    ledger.suspend("talk")
    assert ledger.room("ccs.text", 1.0).need[TEXT] is None
    unused = ledger.when_unused("talk")
    assert not unused.is_set()
    ledger.release(("a", 1))
    assert unused.is_set()
    assert ledger.when_unused("eyes").is_set()
    assert ledger.could_take(Footprint(fixed_bytes=900), ["talk"])
    assert not ledger.could_take(Footprint(fixed_bytes=901), ["talk"])


def test_a_dead_engine_s_place_is_kept_for_its_successor(ledger):
    ledger.reserve(("a", 1), *EYES, sizes(600))
    assert ledger.take("talk", Footprint(fixed_bytes=300, pool_bytes=200))
    assert not ledger.take("talk", Footprint(fixed_bytes=301, pool_bytes=200))
    assert ledger.room("ccs.text", 1.0).need[TEXT] is not None


def test_no_engine_takes_memory_that_a_claim_was_just_offered(ledger):
    taken = threading.Event()

    def take() -> None:
        ledger.take("ears", Footprint(fixed_bytes=600))
        taken.set()

    with ledger.offering():
        assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 600
        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.05)
        ledger.reserve(("a", 1), *EYES, sizes(600))
    thread.join(10)
    assert taken.is_set()
    assert ledger.room("ccs.vision", 1.0).pools[0] == Pool(free_bytes=0, total_bytes=600)


def test_memory_that_the_device_does_not_tell_bounds_nothing():
    ledger = MemoryLedger(None, LANES)
    assert ledger.take("eyes", Footprint(fixed_bytes=10**12))
    ledger.admit("eyes", Footprint(fixed_bytes=10**12), PER_TOKEN)
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes > 10**15
    one = Borrower()
    ledger.reserve(("a", 1), *EYES, sizes(5))
    ledger.resize(("a", 1), 10**13, one)
    assert one.told == [10**13]
    assert (ledger.holdings().budget_bytes, ledger.holdings().free_bytes) == (None, None)


def test_what_room_makes_is_told(ledger):
    calls: list[int] = []
    ledger.on_room = lambda: calls.append(1)
    ledger.reserve(("a", 1), *EYES, sizes(5))
    assert not calls
    ledger.release(("a", 1))
    assert calls


def test_jobs_that_ran_out_of_memory_make_the_next_ones_larger(ledger):
    ledger.inflate("eyes", 1.25)
    assert ledger.bytes_for(*EYES, sizes(100)) == 125
    assert ledger.bytes_for(*TEXT, sizes(100)) == 100


class Crowd:
    """Claims, needs, ends and switches, drawn by a seed."""

    FOOTPRINTS: ClassVar = {
        "talk": Footprint(fixed_bytes=4000, pool_bytes=3000),
        "eyes": Footprint(fixed_bytes=1500),
        "ears": Footprint(fixed_bytes=2000),
    }
    LANES: ClassVar = {"talk": TEXT, "eyes": EYES, "ears": EARS}

    def __init__(self, seed):
        self.pick, self.ledger = random.Random(seed), MemoryLedger(10_000, LANES)
        self.jobs: dict[tuple[str, int], tuple[str, Borrower]] = {}
        self.count = 0

    def load(self):
        alias = self.pick.choice(list(self.LANES))
        if self.ledger.take(alias, self.FOOTPRINTS[alias]):
            self.ledger.admit(alias, self.FOOTPRINTS[alias], PER_TOKEN)

    def unload(self):
        alias = self.pick.choice(list(self.LANES))
        if all(used != alias for used, _ in self.jobs.values()):
            self.ledger.drop(alias)

    def claim(self):
        alias = self.pick.choice(list(self.LANES))
        room, tokens = self.ledger.room(self.LANES[alias][0], 1.0), self.pick.randrange(1, 3500)
        need = room.need[self.LANES[alias]]
        if need is None or tokens > room.pools[need.pool].free_bytes:
            return
        self.count += 1
        key = (f"job{self.count}", 1)
        assert self.ledger.reserve(key, *self.LANES[alias], sizes(tokens)) == tokens
        self.jobs[key] = (alias, Borrower())

    def resize(self):
        if self.jobs:
            key = self.pick.choice(list(self.jobs))
            need = self.pick.randrange(1, 4000)
            self.ledger.resize(key, need, self.jobs[key][1], self.pick.choice((0, self.pick.randrange(need))))

    def end(self, *keys):
        for key in keys or (self.jobs and [self.pick.choice(list(self.jobs))]) or ():
            del self.jobs[key]
            self.ledger.release(key)

    def end_those_handed_back(self):
        self.end_all([key for key, (_, one) in self.jobs.items() if one.told and one.told[-1] == "back"])

    def end_all(self, keys):
        for key in keys:
            self.end(key)

    def check(self):
        held = self.ledger.holdings()
        assert all(one.jobs_bytes <= one.pool_bytes for one in held.engines if one.pool_bytes)
        shared = sum(one.jobs_bytes for one in held.engines if not one.pool_bytes)
        assert sum(one.fixed_bytes for one in held.engines) + shared <= 10_000
        assert held.free_bytes >= 0


@pytest.mark.parametrize("seed", range(20))
def test_the_budget_holds_whatever_happens(seed):
    crowd = Crowd(seed)
    deeds = (crowd.load, crowd.unload, crowd.claim, crowd.claim, crowd.resize, crowd.end)
    for _ in range(500):
        crowd.pick.choice(deeds)()
        crowd.check()
        crowd.end_those_handed_back()
    assert crowd.count > 20
    crowd.end_all(list(crowd.jobs))
    for alias in crowd.LANES:
        crowd.ledger.drop(alias)
    assert crowd.ledger.holdings().free_bytes == 10_000


def test_what_others_take_is_no_longer_offered(ledger):
    ledger.reserve(("a", 1), *EYES, sizes(250))
    ledger.rebudget(700)
    assert ledger.room("ccs.vision", 1.0).pools[0] == Pool(free_bytes=50, total_bytes=300)
    ledger.rebudget(500)
    assert ledger.room("ccs.vision", 1.0).pools[0].free_bytes == 0
    one = Borrower()
    ledger.resize(("a", 1), 300, one)
    assert one.told == []
    ledger.rebudget(1000)
    assert one.told == [300]


def test_what_a_process_uses_beyond_what_was_reserved_is_held_too(ledger):
    """Rises at once, falls slowly; for an engine with a pool and for one whose jobs come on top."""
    ledger.reserve(("a", 1), *EYES, sizes(250))
    ledger.observe("eyes", 340)
    assert ledger.holdings().free_bytes == 350
    ledger.observe("eyes", 400)
    assert ledger.holdings().free_bytes == 300
    assert ledger.room("ccs.vision", 1.0).pools[0] == Pool(free_bytes=300, total_bytes=550)
    ledger.reserve(("b", 1), *TEXT, sizes(50))
    ledger.observe("talk", 380)
    assert ledger.holdings().free_bytes == 220
    eyes, talk = (
        next(one for one in ledger.holdings().engines if one.alias == name) for name in ("eyes", "talk")
    )
    assert (eyes.peak_bytes, eyes.held_bytes, eyes.fixed_bytes) == (400, 350, 150)
    assert (talk.peak_bytes, talk.held_bytes, talk.fixed_bytes) == (380, 300, 380)
    seen = []
    ledger.on_room = lambda: seen.append(ledger.holdings().free_bytes)
    for _ in range(100):
        ledger.observe("eyes", 300)
        ledger.observe("talk", 300)
    assert ledger.holdings().free_bytes == 350
    assert seen == sorted(seen)
    assert seen[0] < 250
    ledger.observe("nobody", 10**9)


def test_the_memory_of_a_job_that_has_just_ended_is_nobodys_surplus(ledger):
    """The ledger learns of a job's end a little before or after the process's memory shows it."""
    ledger.reserve(("a", 1), *EYES, sizes(250))
    ledger.observe("eyes", 350)
    ledger.release(("a", 1))
    ledger.observe("eyes", 350)
    ledger.observe("eyes", 350)
    assert ledger.holdings().free_bytes == 600
    ledger.observe("eyes", 120)
    assert ledger.holdings().free_bytes == 580


def test_what_was_measured_refuses_no_job_for_good(ledger):
    ledger.observe("eyes", 700)
    assert ledger.holdings().free_bytes == 0
    borrower = Borrower()
    ledger.reserve(("a", 1), *EYES, sizes(0))
    ledger.resize(("a", 1), 600, borrower)
    assert borrower.told == []
    for _ in range(100):
        ledger.observe("eyes", 100)
    assert borrower.told == [600]
