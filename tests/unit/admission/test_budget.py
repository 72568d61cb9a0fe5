"""What a device leaves for a worker."""

from __future__ import annotations

import logging
import os

import pytest

from ccs_workers.admission.budget import DeviceBudget
from ccs_workers.devices import Reading
from ccs_workers.settings import MemoryWish, parse_memory

GIB = 2**30


class FixedDevice:
    """Answers with what it was given last."""

    def __init__(self, kind, **reading):
        self.name = self.kind = kind
        self.uuid, self.visible = "u", ""
        self.asked: list[set[int]] = []
        self.says(**reading)

    def says(self, total=None, used=None, others=None, own=0, reason=""):
        self._reading = Reading(
            total_bytes=total, used_bytes=used, others_bytes=others, by_pid={os.getpid(): own}, reason=reason
        )

    def read(self, own_pids=()):
        self.asked.append(set(own_pids))
        return self._reading


@pytest.mark.parametrize(
    ("wish", "others", "expected"),
    [
        (MemoryWish(), 0, 9 * GIB),
        (MemoryWish(share=0.5), 0, 5 * GIB),
        (MemoryWish(), 4 * GIB, 6 * GIB),
        (MemoryWish(share=0.5), 4 * GIB, 5 * GIB),
        (MemoryWish(limit_bytes=3 * GIB), 4 * GIB, 3 * GIB),
        (MemoryWish(limit_bytes=8 * GIB), 4 * GIB, 6 * GIB),
        (MemoryWish(), 11 * GIB, 0),
    ],
)
def test_a_worker_takes_what_it_was_told_of_what_others_leave(wish, others, expected):
    device = FixedDevice("cuda", total=10 * GIB, used=others, others=others)
    assert DeviceBudget(device, wish).read([17]) == expected
    assert device.asked == [{17, os.getpid()}]


def test_on_a_cpu_the_worker_itself_lives_in_the_same_memory():
    device = FixedDevice("cpu", total=10 * GIB, used=GIB, others=GIB, own=GIB)
    assert DeviceBudget(device, MemoryWish(share=1.0)).read() == 8 * GIB
    device.says(total=10 * GIB, used=GIB, others=GIB, own=5)
    assert DeviceBudget(device, MemoryWish(share=1.0)).read() == 9 * GIB - GIB // 4


def test_unknown_memory_bounds_nothing_but_what_was_told(caplog):
    device = FixedDevice("cuda", reason="no NVML")
    with caplog.at_level(logging.WARNING):
        budget = DeviceBudget(device, MemoryWish())
        assert (budget.read(), budget.read()) == (None, None)
    assert [record.getMessage().count("no NVML") for record in caplog.records] == [1]
    assert DeviceBudget(device, MemoryWish(limit_bytes=5)).read() == 5


def test_where_others_cant_be_told_apart_what_was_used_before_is_theirs():
    device = FixedDevice("cuda", total=10 * GIB, used=3 * GIB)
    budget = DeviceBudget(device, MemoryWish())
    assert budget.read() == 7 * GIB
    device.says(total=10 * GIB, used=8 * GIB)
    assert budget.read([17]) == 7 * GIB
    device.says(total=10 * GIB, used=8 * GIB, others=2 * GIB)
    assert budget.read([17]) == 8 * GIB


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("8GiB", MemoryWish(limit_bytes=8 * GIB)),
        ("1.5 GB", MemoryWish(limit_bytes=1_500_000_000)),
        ("500MB", MemoryWish(limit_bytes=500_000_000)),
        ("4096", MemoryWish(limit_bytes=4096)),
        ("80%", MemoryWish(share=0.8)),
        (" 100% ", MemoryWish(share=1.0)),
    ],
)
def test_memory_is_said_as_an_amount_or_a_share(text, wish):
    assert parse_memory(text) == wish


@pytest.mark.parametrize(
    "text", ["", "0", "0%", "101%", "-1GiB", "8 apples", "GiB", "1e9", "nan%", "9999999999TiB"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(Exception, match="memory must be an amount such as 8GiB"):
        parse_memory(text)
