"""Static parts and dynamic floors, as pure arithmetic."""

from __future__ import annotations

import random

import pytest

from ccs_broker.errors import ConfigurationError
from ccs_workers.scheduling.allocation import dynamic_allocation, static_allocation

TEXT, VISION, AUDIO = QUEUES = ("ccs.text", "ccs.vision", "ccs.audio")


@pytest.mark.parametrize(
    ("slots", "parts"), [(16, (6, 5, 5)), (3, (1, 1, 1)), (4, (2, 1, 1)), (48, (16, 16, 16))]
)
def test_equal_parts_use_every_slot(slots, parts):
    allocation = static_allocation(slots, {}, QUEUES)
    assert tuple(allocation.bounds[queue] for queue in QUEUES) == parts
    assert allocation.slots == slots


def test_a_static_part_is_the_queue_s_own():
    allocation = static_allocation(16, {TEXT: 8, VISION: 4, AUDIO: 4}, QUEUES)
    assert not allocation.has_room(TEXT, {TEXT: 8})
    assert allocation.has_room(VISION, {TEXT: 8, VISION: 3})
    assert allocation.has_room(AUDIO, {})
    assert (allocation.share_of(TEXT), allocation.share_of(AUDIO)) == (0.5, 0.25)


def test_a_pool_is_anybody_s_but_for_the_floors():
    allocation = dynamic_allocation(8, {TEXT: 2, VISION: 1}, QUEUES)
    assert allocation.has_room(AUDIO, {AUDIO: 4})
    assert not allocation.has_room(AUDIO, {AUDIO: 5})
    assert allocation.has_room(VISION, {AUDIO: 5})
    assert allocation.has_room(TEXT, {AUDIO: 5, VISION: 1})
    assert allocation.has_room(AUDIO, {TEXT: 2, VISION: 1, AUDIO: 4})
    assert not allocation.has_room(TEXT, {AUDIO: 5, TEXT: 3})
    assert allocation.share_of(AUDIO) == 1.0
    assert dynamic_allocation(2, {}, QUEUES).has_room(AUDIO, {AUDIO: 1})
    assert not dynamic_allocation(2, {}, QUEUES).has_room(AUDIO, {AUDIO: 1, TEXT: 1})


def test_no_order_of_arrivals_shuts_a_floor_out():
    rng = random.Random(1)
    allocation = dynamic_allocation(9, {TEXT: 3, VISION: 2}, QUEUES)
    busy = dict.fromkeys(QUEUES, 0)
    for _ in range(5000):
        queue = rng.choice(QUEUES)
        if rng.random() < 0.6 and allocation.has_room(queue, busy):
            busy[queue] += 1
        elif busy[queue]:
            busy[queue] -= 1
        assert sum(busy.values()) <= 9
        for floored, floor in allocation.floors.items():
            # Below its floor a queue always has room.
            assert busy[floored] >= floor or allocation.has_room(floored, busy)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: static_allocation(2, {}, QUEUES), "audio without a slot"),
        (lambda: static_allocation(8, {TEXT: 8}, QUEUES), "vision without a slot"),
        (lambda: static_allocation(8, {TEXT: 4, VISION: 4}, (TEXT,)), "vision, which isn't served"),
        (lambda: dynamic_allocation(8, {TEXT: 9}, QUEUES), "9 slots, the worker has 8"),
        (lambda: dynamic_allocation(8, {AUDIO: 1}, (TEXT,)), "audio, which isn't served"),
    ],
)
def test_what_can_not_be_divided_like_that_is_said(make, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        make()
