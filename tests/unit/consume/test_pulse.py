"""When a worker calls itself stalled, on a clock of the test's own."""

from __future__ import annotations

import pytest

from ccs_workers.consume import pulse
from ccs_workers.consume.pulse import Consuming, Pulse


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pulse, "time", made)
    return made


@pytest.fixture
def consuming() -> Consuming:
    made = Consuming()
    made.begin()
    return made


def test_jobs_that_wait_beside_free_slots(clock: Clock, consuming: Consuming) -> None:
    watch = Pulse(consuming, 30.0)
    watch.look(waiting=2, silent_s=500.0)
    assert watch.trouble == ""
    clock.now += 29
    watch.look(waiting=3, silent_s=529.0)
    assert watch.trouble == ""
    clock.now += 1
    watch.look(waiting=3, silent_s=530.0)
    assert watch.trouble == "3 jobs wait, slots are free, and nothing was claimed for 30 s"
    watch.look(waiting=3, silent_s=0.0)
    assert watch.trouble == ""


def test_an_answer_without_a_job_is_a_sign_of_life(clock: Clock, consuming: Consuming) -> None:
    watch = Pulse(consuming, 30.0)
    for _ in range(100):
        watch.look(waiting=1, silent_s=1.0)
        assert watch.trouble == ""
        clock.now += 1


def test_full_slots_and_empty_queues_are_no_stall(clock: Clock, consuming: Consuming) -> None:
    watch = Pulse(consuming, 30.0)
    watch.look(waiting=1, silent_s=500.0)
    clock.now += 20
    watch.look(waiting=0, silent_s=520.0)
    clock.now += 20
    watch.look(waiting=1, silent_s=540.0)
    assert watch.trouble == ""


def test_a_lost_connection_is_told_at_once(consuming: Consuming) -> None:
    changes: list[str] = []
    watch = Pulse(consuming, 30.0)
    consuming.on_change = lambda: changes.append(watch.trouble)
    consuming.end("TimeoutError")
    consuming.begin()
    assert changes == ["the consumer has no connection (TimeoutError)", ""]
