"""Stop strings, cut up in every way."""

from __future__ import annotations

import pytest

from ccs_workers.engines.text.stop_strings import StopFilter


def cut(text: str, size: int) -> list[str]:
    return [text[first : first + size] for first in range(0, len(text), size)]


def run(pieces: list[str], *stops: str) -> tuple[str, bool]:
    stop = StopFilter(stops)
    text = "".join(map(stop.push, pieces))
    return text + stop.finish(), stop.found


@pytest.mark.parametrize("size", range(1, 20))
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two STOP three", ["STOP"], "one two "),
        ("aaab", ["aab"], "a"),
        ("STOP", ["STOP"], ""),
        ("no such thing", ["STOP"], None),
        ("ends in a STO", ["STOP"], None),
        ("a\n\nb", ["\n\n"], "a"),
        ("first END then STOP", ["STOP", "END"], "first "),
        ("日本語。続き", ["。"], "日本語"),
        # What is complete first counts, also where something longer began before it.
        ("xabcdx", ["abcd", "bc"], "xa"),
        # Of two that are complete at once, the longer: the text ends before both.
        ("xabcx", ["bc", "abc"], "x"),
        ("ababac", ["abac"], "ab"),
        ("anything", [], None),
    ],
)
def test_text_ends_before_the_first_stop_string(text, stops, expected, size):
    assert run(cut(text, size), *stops) == (text if expected is None else expected, expected is not None)


def test_only_what_could_become_a_stop_string_is_held_back():
    stop = StopFilter(["END", "\n\n"])
    assert [stop.push(piece) for piece in ["abc", "dE", "N", "x", "\n", "y"]] == [
        "abc",
        "d",
        "",
        "ENx",
        "",
        "\ny",
    ]
    assert stop.finish() == ""


def test_what_was_held_back_comes_at_the_end():
    stop = StopFilter(["END"])
    assert stop.push("the EN") == "the "
    assert stop.finish() == "EN"
    assert stop.finish() == ""


def test_nothing_comes_after_a_stop_string():
    stop = StopFilter(["."])
    assert stop.push("yes. no") == "yes"
    assert stop.push("more") == ""
    assert stop.finish() == ""
