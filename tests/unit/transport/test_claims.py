"""Acknowledgements that the server didn't take are kept, with their lease, and told again."""

from __future__ import annotations

from collections import deque

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, OutOfMemoryError, ReadOnlyError

from ccs_broker.ledger import Claim
from ccs_broker.transport import ClaimTable

KEY = ("job", 3)


class AwayLedger:
    """Raises what is queued, one error a call, and notes what came through."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = deque(errors)
        self.told: list[tuple[str, str, int]] = []

    def ack(self, job_id: str, attempt: int) -> None:
        self._tell("ack", job_id, attempt)

    def release(self, job_id: str, attempt: int) -> None:
        self._tell("release", job_id, attempt)

    def _tell(self, what: str, job_id: str, attempt: int) -> None:
        if self.errors:
            raise self.errors.popleft()
        self.told.append((what, job_id, attempt))


def claim(job_id: str = "job") -> Claim:
    return Claim(
        id=job_id, attempt=3, queue="ccs.text", message=b"", payload=b"", seq=1, submitted_ms=0, expire_ms=0
    )


@pytest.fixture
def table() -> ClaimTable:
    made = ClaimTable()
    made.add(claim())
    made.begin(KEY)
    made.end(KEY)
    return made


@pytest.mark.parametrize("error", [ConnectionError(), OSError(104), ReadOnlyError(), OutOfMemoryError()])
def test_a_failed_ack_is_told_again_and_keeps_its_lease(table: ClaimTable, error: Exception) -> None:
    ledger = AwayLedger(error, error)
    table.settle(KEY, ledger)
    assert table.busy() == 0
    assert table.renewable() == [KEY]
    table.pay(ledger)
    assert ledger.told == []
    assert table.renewable() == [KEY]
    table.pay(ledger)
    assert ledger.told == [("ack", *KEY)]
    assert table.renewable() == []
    table.pay(ledger)
    assert len(ledger.told) == 1


def test_a_server_that_is_away_is_asked_once_a_round(table: ClaimTable) -> None:
    keys = [("a", 3), ("b", 3), ("c", 3)]
    ledger = AwayLedger(*[ConnectionError()] * 4)
    for key in keys:
        table.settle(key, ledger)
    table.pay(ledger)
    assert not ledger.errors
    table.pay(ledger)
    assert ledger.told == [("ack", *key) for key in keys]


def test_a_refusal_for_good_is_not_repeated(table: ClaimTable) -> None:
    ledger = AwayLedger(NoPermissionError())
    table.settle(KEY, ledger)
    assert table.renewable() == []
    table.pay(ledger)
    assert ledger.told == []


def test_a_finished_job_needs_no_ack(table: ClaimTable) -> None:
    table.mark_finished(KEY)
    ledger = AwayLedger()
    table.settle(KEY, ledger)
    assert ledger.told == []
    assert table.renewable() == []


def test_a_job_without_an_outcome_goes_back_instead_of_being_acknowledged(table: ClaimTable) -> None:
    table.hand_back(KEY)
    ledger = AwayLedger(ConnectionError())
    table.settle(KEY, ledger)
    table.pay(ledger)
    assert ledger.told == [("release", *KEY)]
