"""Durations and pairs, as people write them."""

from __future__ import annotations

import click
import pytest

from ccs_broker.cli.options import DURATION, PAIR


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5.0),
        ("5", 5.0),
        ("0.25", 0.25),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("7d", 604_800.0),
        (" 3 S ", 3.0),
        (4, 4.0),
    ],
)
def test_a_duration_is_seconds(written, seconds):
    assert DURATION.convert(written, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "s", "0", "0s", "-1s", "5x", "1e9", "five", "1m30s", "nan", "inf"])
def test_what_is_no_duration_is_wrong_usage(written):
    with pytest.raises(click.BadParameter, match="500ms, 5s, 2m or 1h"):
        DURATION.convert(written, None, None)


@pytest.mark.parametrize(
    ("written", "pair"),
    [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c")), ("a b= c ", ("a b", " c "))],
)
def test_a_pair_is_key_and_value(written, pair):
    assert PAIR.convert(written, None, None) == pair


@pytest.mark.parametrize("written", ["", "a", "=b"])
def test_what_is_no_pair_is_wrong_usage(written):
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        PAIR.convert(written, None, None)
