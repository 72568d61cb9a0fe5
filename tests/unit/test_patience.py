"""How long a worker waits for a server that is away: with the outage, not with each call."""

from __future__ import annotations

import pytest

from ccs_workers.publish import patience
from ccs_workers.publish.patience import GIVE_UP_AFTER_S, GIVE_UP_CLOSING_S, Outage, Patience


class Clock:
    """Time that passes only where it is slept, or set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(patience, "time", found)
    return found


def waited_s(clock: Clock, outage: Outage) -> float:
    """How long one call waits that never reaches the server."""
    began, call = clock.now, Patience(outage)
    while call.wait():
        pass
    return clock.now - began


def test_one_outage_has_one_patience_whatever_number_of_calls(clock):
    outage = Outage()
    assert waited_s(clock, outage) == pytest.approx(GIVE_UP_AFTER_S, abs=1)
    assert [waited_s(clock, outage) for _ in range(500)] == [0.0] * 500
    outage.over()
    assert waited_s(clock, outage) == pytest.approx(GIVE_UP_AFTER_S, abs=1)


def test_a_call_gives_up_though_others_reach_the_server(clock):
    outage = Outage()
    call = Patience(outage)
    began = clock.now
    while call.wait():
        outage.over()
    assert clock.now - began == pytest.approx(GIVE_UP_AFTER_S, abs=1)


@pytest.mark.parametrize("before_s", [None, 0.0, 100.0])
def test_a_worker_that_is_to_stop_waits_a_few_seconds_from_then(clock, before_s):
    outage = Outage()
    if before_s is not None:
        assert outage.failed()
        clock.now += before_s
    outage.closing()
    assert waited_s(clock, outage) == pytest.approx(GIVE_UP_CLOSING_S, abs=1)
    assert waited_s(clock, outage) == 0.0
