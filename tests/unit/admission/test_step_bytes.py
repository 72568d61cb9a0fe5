"""What only a step takes counts once for an engine's jobs, as it takes one step at a time."""

from __future__ import annotations

from ccs_workers.admission.ledger import MemoryLedger
from ccs_workers.admission.records import Footprint
from tests.unit.admission.test_ledger import EARS, EYES, LANES, PER_TOKEN, Borrower, sizes


def two_engines() -> MemoryLedger:
    """1000 bytes; two engines of 100, whose jobs come on top."""
    ledger = MemoryLedger(1000, LANES)
    for alias in ("eyes", "ears"):
        assert ledger.take(alias, Footprint(fixed_bytes=100))
        ledger.admit(alias, Footprint(fixed_bytes=100), PER_TOKEN)
    return ledger


def held(ledger: MemoryLedger) -> dict[str, int]:
    return {one.alias: one.jobs_bytes for one in ledger.holdings().engines}


def sized(ledger, name, lane, need_bytes, step_bytes):
    borrower = Borrower()
    ledger.reserve((name, 1), *lane, sizes(10))
    ledger.resize((name, 1), need_bytes, borrower, step_bytes)
    return borrower


def test_the_largest_step_counts_once_for_each_engine():
    ledger = two_engines()
    first = sized(ledger, "a", EYES, 130, 100)
    second = sized(ledger, "b", EYES, 90, 60)
    third = sized(ledger, "c", EARS, 45, 40)
    # Each may use all of its own, but not both eyes' at once.
    assert (first.told, second.told, third.told) == ([130], [90], [45])
    assert held(ledger) == {"eyes": 30 + 30 + 100, "ears": 45}
    assert ledger.holdings().free_bytes == 800 - 160 - 45
    assert ledger.reserved_bytes(("b", 1)) == 90
    ledger.release(("a", 1))
    assert held(ledger) == {"eyes": 90, "ears": 45}
    ledger.release(("b", 1))
    ledger.release(("c", 1))
    assert ledger.holdings().free_bytes == 800


def test_a_step_that_is_there_already_needs_no_more_room():
    ledger = two_engines()
    sized(ledger, "a", EYES, 700, 600)
    # 100 are free: enough for what lasts of it, as the step is smaller than one that is held.
    fits = sized(ledger, "b", EYES, 590, 500)
    assert fits.told == [590]
    assert held(ledger)["eyes"] == 100 + 90 + 600
    # And here it isn't: its step would be on top of the other engine's.
    waits = sized(ledger, "c", EARS, 590, 500)
    assert waits.told == []
    ledger.release(("a", 1))
    assert waits.told == []
    ledger.release(("b", 1))
    assert waits.told == [590]


def test_going_makes_room_for_what_goes_with_it_only():
    """Who preempts is told the room there would be; the step of a job that stays remains."""
    ledger = two_engines()
    sized(ledger, "a", EYES, 130, 100)
    sized(ledger, "b", EYES, 120, 90)
    free = 800 - 30 - 30 - 100
    assert ledger.room_without(("a", 1), *EYES).free_bytes == free + 30 + 10
    assert ledger.room_without(("b", 1), *EYES).free_bytes == free + 30
