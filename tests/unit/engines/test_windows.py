"""Long sound is cut at pauses into windows that the model can hear whole."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from ccs_workers.engines.media import plan_windows
from ccs_workers.engines.whisper.joining import continuation

LONGEST = 1500  # levels of 20 ms: 30 s


def flat(seconds, dbfs=-20.0):
    return np.full(round(seconds * 50), dbfs, np.float32)


@pytest.mark.parametrize("seconds", [0.02, 1, 29, 30, 30.02, 30.5, 31, 45, 59.9, 60, 60.1, 95, 600, 3600])
@pytest.mark.parametrize("kind", ["flat", "silent", "speech"])
def test_windows_cover_everything_once_and_fit(seconds, kind):
    levels = flat(seconds, -120.0 if kind == "silent" else -20.0)
    if kind == "speech":
        levels = levels + np.random.default_rng(5).normal(0, 10, len(levels)).astype(np.float32)
    windows = plan_windows(levels, LONGEST)

    assert windows[0][0] == 0
    assert windows[-1][1] == len(levels)
    assert all(before[1] == after[0] for before, after in pairwise(windows))
    assert all(0 < end - start <= LONGEST for start, end in windows)
    assert math.ceil(seconds / 30) <= len(windows) <= math.ceil(seconds / 22) + 1


@pytest.mark.parametrize(("seconds", "count"), [(29, 1), (30, 1), (31, 2), (45, 2), (95, 4), (600, 20)])
def test_without_pauses_windows_are_as_long_as_they_can_be(seconds, count):
    assert len(plan_windows(flat(seconds), LONGEST)) == count


def test_cuts_fall_into_pauses():
    levels = flat(100)
    for pause_s in (23.4, 26.0, 51.0, 77.0):
        levels[round(pause_s * 50) - 10 : round(pause_s * 50) + 10] = -60.0
    levels[round(26.0 * 50) - 10 : round(26.0 * 50) + 10] = -70.0

    cuts_s = [end / 50 for _, end in plan_windows(levels, LONGEST)[:-1]]
    assert cuts_s == pytest.approx([26.0, 51.0, 77.0], abs=0.1)


def test_a_long_pause_beats_a_deep_gap_between_two_sounds():
    levels = flat(40)
    levels[round(24.0 * 50)] = -120.0
    levels[round(27.0 * 50) - 15 : round(27.0 * 50) + 15] = -45.0
    assert plan_windows(levels, LONGEST)[0][1] / 50 == pytest.approx(27.0, abs=0.2)


def test_the_last_window_is_not_a_mere_rest():
    *_, (start, end) = plan_windows(flat(30.1), LONGEST)
    assert end - start == 50


@pytest.mark.parametrize(
    ("last", "text", "joined"),
    [
        ("", " And so it began.", "And so it began."),
        (".", " And so it went on.", " And so it went on."),
        (".", "And so it went on.", " And so it went on."),
        ("e", " \n", ""),
        ("京", "都に行く。", "都に行く。"),
        ("。", "次の日、", "次の日、"),
        ("。", "OK", " OK"),
    ],
)
def test_texts_of_windows_join_naturally(last, text, joined):
    assert continuation(last, text) == joined
