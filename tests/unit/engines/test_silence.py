"""The gate before the speech model: silence in, nothing asked."""

from __future__ import annotations

import numpy as np
import pytest

from ccs_workers.engines.media import LevelMeter, has_sound
from tests.media_jobs import noise, tone

DEFAULT_DBFS = -55.0


def levels(samples, rate_hz=16_000, piece=16_000):
    meter = LevelMeter(rate_hz)
    for first in range(0, len(samples), piece):
        meter.add(samples[first : first + piece])
    return meter.finish()


def silence(seconds):
    return np.zeros(round(seconds * 16_000), np.float32)


@pytest.mark.parametrize(
    ("sound", "heard"),
    [
        (silence(10), False),
        (noise(10, dbfs=-80), False),
        (noise(10, dbfs=-60), False),
        (silence(10) + 0.3, False),
        (noise(10, dbfs=-45), True),
        (np.concatenate([silence(5), tone(0.2), silence(5)]), True),
        (np.concatenate([silence(5), tone(2.0)]), True),
        (tone(0.05), True),
        (tone(0.01), True),
    ],
    ids=["zeros", "-80 dBFS", "-60 dBFS", "constant", "-45 dBFS", "0.2 s", "late tone", "50 ms", "10 ms"],
)
def test_sound_is_told_from_silence(sound, heard):
    assert has_sound(levels(sound), DEFAULT_DBFS) is heard


def test_a_click_is_not_speech():
    sound = silence(2.0)
    sound[16_000:16_010] = 1.0
    assert not has_sound(levels(sound), DEFAULT_DBFS)


def test_the_gate_can_be_switched_off():
    assert has_sound(levels(silence(1.0)), None)


def test_the_threshold_decides():
    quiet = levels(noise(1.0, dbfs=-62))
    assert not has_sound(quiet, -55.0)
    assert has_sound(quiet, -70.0)


def test_levels_are_in_dbfs():
    assert levels(tone(1.0, level=1.0)).mean() == pytest.approx(-3.01, abs=0.05)
    assert levels(noise(1.0, dbfs=-40)).mean() == pytest.approx(-40, abs=0.3)
    assert levels(silence(1.0)) == pytest.approx([-120.0] * 50)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 44_100])
def test_levels_do_not_depend_on_how_the_sound_is_cut_up(rate_hz):
    sound = noise(1.3, rate_hz)
    np.testing.assert_array_equal(levels(sound, rate_hz, 777), levels(sound, rate_hz, 1 << 30))
