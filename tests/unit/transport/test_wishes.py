"""What a worker offers to take: queues with room, and the memory that its claims leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccs_broker.contract.build import build_job
from ccs_broker.ledger import Blocked, Claim, Pool
from ccs_broker.transport import ClaimTable, WorkerProfile
from ccs_workers.admission.ledger import MemoryLedger
from ccs_workers.admission.records import Footprint

QUEUES = ("ccs.text", "ccs.audio")


def memory():
    """A thousand bytes, of which jobs hold one for each character of the prompt and ten for each new token."""
    ledger = MemoryLedger(1000, {(queue, ""): "m" for queue in QUEUES})
    ledger.admit("m", Footprint(fixed_bytes=0), (0.0, 1.0, 10.0, 0.0, 0.0))
    return ledger


class Halves:
    """Two slots and half the memory for each queue."""

    is_static = True

    def has_room(self, queue, busy):
        return busy.get(queue, 0) < 2

    def share_of(self, queue):
        return 0.5


def claim(job_id, queue="ccs.text"):
    job = build_job("text", {"prompt": "x" * 30, "max_new_tokens": 7}, job_id=job_id).job
    return Claim(
        id=job_id, attempt=1, queue=queue, message=b"", payload=job.model_dump_json().encode(),
        seq=1, submitted_ms=0, expire_ms=0,
    )  # fmt: skip


@pytest.fixture
def table():
    found = ClaimTable()
    found.profile = WorkerProfile(name="w", models=("m",), slots=4, memory=memory())
    return found


def test_a_pool_offers_all_its_queues_and_all_its_memory(table):
    table.add(claim("a"))
    table.add(claim("b", "ccs.audio"))
    wish = table.wish("ccs.text", QUEUES, nudged=True)
    assert (wish.popped, wish.queues, wish.worker, wish.models) == ("ccs.text", QUEUES, "w", ("m",))
    assert (wish.room.pools, wish.nudged) == ((Pool(free_bytes=800, total_bytes=1000),), True)
    assert table.busy_by_queue() == {"ccs.text": 1, "ccs.audio": 1}
    table.begin(("a", 1))
    table.end(("a", 1))
    assert table.wish("ccs.text", QUEUES).room.pools[0].free_bytes == 900
    assert table.busy_by_queue() == {"ccs.audio": 1}


def test_static_parts_are_offered_one_by_one(table):
    table.profile = replace(table.profile, rules=Halves())
    table.add(claim("a"))
    table.add(claim("b"))
    wish = table.wish("ccs.text", QUEUES)
    assert (wish.queues, wish.room.pools) == (("ccs.text",), (Pool(free_bytes=300, total_bytes=500),))
    assert table.wish("ccs.audio", QUEUES).room.pools[0].free_bytes == 500
    assert not table.has_room("ccs.text")
    assert table.has_room("ccs.audio")
    assert table.has_slot()


def test_without_a_statement_memory_is_no_bound(table):
    table.profile = WorkerProfile(name="w")
    table.add(claim("a"))
    assert table.wish("ccs.text", ()).room is None
    assert table.wish("ccs.text", ()).queues == ("ccs.text",)


def test_what_lacked_memory_is_remembered_until_the_next_answer(table):
    blocked = Blocked(id="j", rank=0, score=5, need_bytes=7)
    assert table.blocked(10) is None
    table.answered(blocked)
    assert table.blocked(10) is blocked
    assert table.blocked(-1) is None
    table.answered()
    assert table.blocked(10) is None


def test_a_claim_that_no_thread_begins_gives_its_memory_back(table):
    table.add(claim("a"))
    table.add(claim("b"))
    assert table.room("ccs.text").pools[0].free_bytes == 800
    assert table.take_unstarted([("a", 1)]) == [("a", 1)]
    assert table.room("ccs.text").pools[0].free_bytes == 900
    table.remove(("b", 1))
    assert table.room("ccs.text").pools[0].free_bytes == 1000


def test_what_cannot_be_read_or_has_ended_holds_nothing(table):
    table.add(replace(claim("a"), payload=b"{"))
    table.add(replace(claim("b"), links=True))
    assert table.room("ccs.text").pools[0].free_bytes == 1000
