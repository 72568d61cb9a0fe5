"""What a process holds: its peaks are those between two looks, whoever else looks in between."""

from __future__ import annotations

import mmap
import threading

import pytest

from ccs_workers.engines import footprint
from ccs_workers.engines.footprint import Footprint, footprint_of, give_back
from ccs_workers.engines.protocol import MemoryUse
from tests.helpers import wait_until

MB = 2**20
#: What else may come and go in this process meanwhile.
SLACK = 8 * MB


@pytest.fixture(params=["kernel", "samples"])
def measured(request, monkeypatch):
    if request.param == "samples":
        monkeypatch.setattr(footprint, "_STATUS", footprint.Path("/nowhere"))
    made = Footprint(footprint._cpu_meter())
    give_back()
    made.use()
    return made


def hold(measured: Footprint, size: int) -> None:
    """Have so many bytes for long enough to be seen; not malloc's, which may keep what was freed."""
    with mmap.mmap(-1, size) as block:
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        seen = threading.Event()
        threading.Timer(0.1, seen.set).start()
        seen.wait()


def test_a_lap_knows_the_peak_of_what_is_over(measured):
    before = measured.use().used_bytes
    with measured.lap() as lap:
        hold(measured, 64 * MB)
    assert abs(lap.peak_bytes - before - 64 * MB) < SLACK
    assert abs(measured.use().used_bytes - before) < SLACK


def test_each_look_tells_the_peak_since_the_last(measured):
    before = measured.use().used_bytes
    hold(measured, 64 * MB)
    use = measured.use()
    assert abs(use.peak_bytes - before - 64 * MB) < SLACK
    assert abs(measured.use().peak_bytes - before) < SLACK
    assert use.allocated_bytes == use.reserved_bytes == use.used_bytes


def test_a_look_takes_no_peak_away_from_a_lap(measured):
    before = measured.use().used_bytes
    with measured.lap() as outer:
        hold(measured, 48 * MB)
        with measured.lap() as inner:
            measured.use()
            hold(measured, 16 * MB)
    assert abs(outer.peak_bytes - before - 48 * MB) < SLACK
    assert abs(inner.peak_bytes - before - 16 * MB) < SLACK


def test_a_peak_is_never_below_what_is_used_now():
    sizes = iter([(5, 9), (7, 7), (3, 8)])

    def meter():
        used, peak = next(sizes)
        return MemoryUse(used_bytes=used, peak_bytes=peak, allocated_bytes=used, reserved_bytes=used)

    made = Footprint(meter)
    assert [(use.used_bytes, use.peak_bytes) for use in (made.use(), made.use(), made.use())] == [
        (5, 9),
        (7, 7),
        (3, 8),
    ]


def test_a_process_has_one_of_a_device():
    assert footprint_of("cpu") is footprint_of("cpu") is footprint_of("simulated")


def test_samples_go_on_by_themselves(measured):
    """Nobody looks while the block is there."""
    before = measured.use().used_bytes
    hold(measured, 32 * MB)
    wait_until(lambda: measured.use().used_bytes < before + SLACK, message="memory stayed")
