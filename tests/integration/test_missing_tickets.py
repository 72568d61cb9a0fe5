"""Tickets lost between their pop and their claim are made good; those that are only on their way there are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccs_broker import topology
from ccs_broker.ledger import Claim
from tests.claiming import Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.redis

TICKETS = topology.tickets_of("ccs.text")


@pytest.fixture
def desk(redis_url: str) -> Iterator[Desk]:
    with Desk(redis_url) as desk:
        for number in range(5):
            desk.publish(f"job-{number}")
        yield desk


def pop(desk: Desk, number: int) -> None:
    for _ in range(number):
        assert desk.redis.rpop(TICKETS) == topology.TICKET


def test_a_sweep_between_pop_and_claim_gives_nothing(desk: Desk) -> None:
    pop(desk, 1)
    assert desk.ledger.sweep().tickets == 0
    desk.redis.lpush(TICKETS, topology.TICKET)
    assert isinstance(desk.claim(), Claim)
    desk.go(1.0)
    assert desk.ledger.sweep().tickets == 0
    assert desk.redis.llen(TICKETS) == 4
    assert desk.redis.exists(topology.MISSING) == 0


def test_a_lost_ticket_is_made_good_at_the_next_sweep(desk: Desk) -> None:
    pop(desk, 2)
    assert desk.ledger.sweep().tickets == 0
    desk.go(1.0)
    assert desk.ledger.sweep().tickets == 2
    assert desk.redis.llen(TICKETS) == 5
    assert desk.ledger.sweep().tickets == 0


def test_many_workers_that_sweep_at_once_count_as_one(desk: Desk) -> None:
    pop(desk, 1)
    for _ in range(20):
        assert desk.ledger.sweep().tickets == 0
        desk.go(0.01)
    desk.go(0.5)
    assert [desk.ledger.sweep().tickets for _ in range(3)] == [1, 0, 0]


def test_only_the_least_that_was_missing_all_along_is_lost(desk: Desk) -> None:
    """One is lost for good; two others come and go, as pops do in a busy fleet."""
    pop(desk, 3)
    desk.ledger.sweep()
    desk.redis.lpush(TICKETS, topology.TICKET, topology.TICKET)
    desk.go(0.3)
    desk.ledger.sweep()
    pop(desk, 2)
    desk.go(0.7)
    assert desk.ledger.sweep().tickets == 1
    desk.redis.lpush(TICKETS, topology.TICKET, topology.TICKET)
    assert desk.redis.llen(TICKETS) == 5


def test_tickets_too_many_are_taken_back_at_once(desk: Desk) -> None:
    desk.redis.lpush(TICKETS, topology.TICKET, topology.TICKET)
    desk.ledger.sweep()
    assert desk.redis.llen(TICKETS) == 5
