"""Whatever is dropped, doubled, reordered or cut: a follower gives the one sequence."""

from __future__ import annotations

import random

import pytest

from ccs_broker.contract import Event, EventKind
from ccs_broker.streams import Follower


def sequence(length):
    kinds = [EventKind.QUEUED, EventKind.STARTED, *[EventKind.DELTA] * length, EventKind.SUCCEEDED]
    return [Event(job="j", seq=seq, kind=kind, text=str(seq)) for seq, kind in enumerate(kinds, 1)]


def follow_over_bad_lines(events, after, rng):
    """Ring bells that get lost, doubled and reordered; fetch what the follower misses, in short pages."""
    follower = Follower(after)
    given = []
    written = 0
    while not follower.done:
        written = min(written + rng.randint(0, 4), len(events))
        bells = [event for event in events[max(0, written - 6) : written] if rng.random() < 0.6]
        bells += rng.sample(bells, len(bells) // 2)
        rng.shuffle(bells)
        given += follower.feed_all(bells)
        assert follower.missing is None or follower.missing[0] == follower.last + 1
        if follower.missing or rng.random() < 0.2:
            first = follower.last
            given += follower.feed_all(events[first : min(written, first + rng.randint(1, 5))])
    return given


@pytest.mark.parametrize("seed", range(200))
def test_random_losses_give_the_same_sequence(seed):
    rng = random.Random(seed)
    events = sequence(rng.randint(0, 40))
    after = rng.choice((0, rng.randint(0, len(events) - 1)))
    assert follow_over_bad_lines(events, after, rng) == events[after:]


def test_a_gap_says_what_is_missing_until_it_is_fetched():
    events = sequence(6)
    follower = Follower()
    assert follower.missing is None
    assert follower.feed(events[0])
    assert not follower.feed(events[4])
    assert follower.missing == (2, 5)
    assert list(follower.feed_all(events[1:3])) == events[1:3]
    assert follower.missing == (4, 5)
    assert list(follower.feed_all(events[1:5])) == events[3:5]
    assert follower.missing is None


def test_nothing_follows_the_terminal_event():
    events = sequence(1)
    follower = Follower()
    assert list(follower.feed_all([*events, *events])) == events
    assert follower.done
    assert follower.missing is None


@pytest.mark.parametrize("after", [4, 5, 100])
def test_a_reader_that_asked_for_what_lies_behind_the_end_is_done(after):
    follower = Follower(after)
    assert list(follower.feed_all(sequence(1))) == []
    assert follower.done
