"""Device time adds up to the time in which any job was active."""

from __future__ import annotations

import random

import pytest

from ccs_workers.publish.run import Spent
from ccs_workers.scheduling.meter import DeviceMeter


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_shared_time_is_divided_and_idle_time_is_nobody_s():
    clock = Clock()
    meter = DeviceMeter(clock)
    meter.begin("a")
    clock.now += 2
    meter.begin("b")
    meter.first_output("a")
    clock.now += 4
    meter.first_output("a")
    meter.first_output("b")
    assert meter.end("a") == Spent(device_s=4.0, first_s=2.0)
    clock.now += 1
    assert meter.end("b") == Spent(device_s=3.0, first_s=2.0)
    clock.now += 50
    meter.begin("c")
    clock.now += 1
    assert meter.end("c") == Spent(device_s=1.0, first_s=None)
    meter.first_output("c")
    with pytest.raises(KeyError):
        meter.end("c")


def test_all_parts_add_up_to_the_busy_time():
    rng, clock = random.Random(2), Clock()
    meter, active, total, busy = DeviceMeter(clock), set(), 0.0, 0.0
    for number in range(3000):
        passed = rng.random()
        clock.now += passed
        busy += passed if active else 0
        if active and rng.random() < 0.5:
            key = rng.choice(sorted(active))
            active.remove(key)
            spent = meter.end(key)
            assert spent.device_s >= 0
            total += spent.device_s
        else:
            active.add(str(number))
            meter.begin(str(number))
    for key in active:
        total += meter.end(key).device_s
    assert total == pytest.approx(busy)


def test_while_an_engine_waits_for_the_server_nobody_uses_the_device():
    clock = Clock()
    meter = DeviceMeter(clock)
    meter.begin("a")
    clock.now += 3
    began = clock.now
    # The write took five seconds to find out, then the server stayed away for twenty more.
    clock.now += 5
    meter.stall(began)
    clock.now += 20
    meter.resume()
    clock.now += 1
    assert meter.end("a") == Spent(device_s=4.0, first_s=None)


def test_two_engines_that_wait_at_once_are_not_counted_twice():
    clock = Clock()
    meter = DeviceMeter(clock)
    meter.begin("a")
    meter.begin("b")
    clock.now += 4
    meter.stall(clock.now - 2)
    clock.now += 1
    meter.stall(clock.now - 2)
    clock.now += 10
    meter.resume()
    clock.now += 10
    meter.resume()
    meter.stall(clock.now - 30)
    meter.resume()
    clock.now += 2
    assert meter.end("a") == Spent(device_s=2.0, first_s=None)
    assert meter.end("b").device_s == 2.0


def test_one_that_came_during_the_wait_pays_for_none_of_it():
    clock = Clock()
    meter = DeviceMeter(clock)
    clock.now += 4
    meter.begin("late")
    meter.stall(clock.now - 4)
    clock.now += 9
    meter.resume()
    clock.now += 1
    assert meter.end("late").device_s == 1.0
