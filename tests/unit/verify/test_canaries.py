"""Canaries: unlike each other, found wherever they are, also in pieces."""

from __future__ import annotations

from random import Random

from ccs_workers.verify.canaries import Aviary, Sayings

TEXT = "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his power"


def aviary_of(*owners: str) -> tuple[Aviary, dict[str, str]]:
    aviary = Aviary(Random(1))
    return aviary, {owner: aviary.hatch(owner) for owner in owners}


def test_the_same_seed_gives_the_same_canaries_and_no_two_share_eight_letters():
    owners = [f"job {number}" for number in range(500)]
    _, words = aviary_of(*owners)
    assert aviary_of(*owners)[1] == words
    fragments = [word[start : start + 8] for word in words.values() for start in range(5)]
    assert len(set(fragments)) == len(fragments)
    assert all(word.isupper() and len(word) == 12 for word in words.values())


def test_a_canary_is_found_in_any_case_split_and_in_part():
    aviary, words = aviary_of("a", "b")
    word = words["a"]
    for text in (
        word,
        word.lower(),
        " ".join(word),
        f"x{word[:8]}y",
        word[4:],
        f"é 日本 {word}",
        "-".join(word),
    ):
        assert set(aviary.strangers("b", text)) == {"a"}, text
        assert aviary.strangers("a", text) == {}
        assert aviary.holds_own("a", text)
        assert not aviary.holds_own("b", text)
    assert aviary.strangers("b", word[:7]) == {}
    assert aviary.strangers("b", f"12 é {word}") == {"a": 5}
    assert aviary.strangers("b", TEXT) == {}


def test_sayings_tell_recordings_apart():
    sayings = Sayings()
    sayings.learn("whole", TEXT)
    sayings.learn("part", "had then leisure to consider")
    sayings.learn("other", "he might even have been made amiable himself")
    assert sayings.strangers("whole", TEXT) == set()
    assert sayings.strangers("whole", TEXT + " had been made amiable himself") == {"other"}
    assert sayings.strangers("other", "he might consider how much there") == {"whole"}
    assert sayings.strangers("other", "he had then in his own") == set()
    assert sayings.strangers("nobody we know", TEXT) == set()
