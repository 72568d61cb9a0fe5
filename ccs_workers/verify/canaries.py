"""Words that stand in one job's input alone, and the search for them in what other jobs say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = ["Aviary", "Sayings"]

#: Letters that are read well in print, in syllables that no language has in such a row.
_CONSONANTS: Final = "BDFGKMNPRTVXZ"
_VOWELS: Final = "AEU"
_SYLLABLES: Final = 6
#: So many letters in a row of a canary give it away: a leak may begin or end within it.
_FRAGMENT: Final = 8
_NOT_A_LETTER = re.compile(r"[^a-z]")
_WORD = re.compile(r"[^\W\d_]+")
#: Words tell two recordings apart only if one of them is no everyday word.
_LONG_WORD: Final = 5


class Aviary:
    """Makes canaries and knows whose they are."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._owners: dict[str, str] = {}

    def hatch(self, owner: str) -> str:
        """Make a canary of twelve capital letters for a job; no fragment of it is in any other canary."""
        while True:
            canary = "".join(
                self._random.choice(_CONSONANTS) + self._random.choice(_VOWELS) for _ in range(_SYLLABLES)
            )
            fragments = set(_fragments(canary.lower()))
            if not fragments & self._owners.keys():
                self._owners.update(dict.fromkeys(fragments, owner))
                return canary

    def strangers(self, owner: str, text: str) -> dict[str, int]:
        """Owners of canaries in a text that isn't theirs, and the character where each is found first."""
        found: dict[str, int] = {}
        letters, places = _letters(text)
        for start, fragment in enumerate(_fragments(letters)):
            other = self._owners.get(fragment)
            if other is not None and other != owner:
                found.setdefault(other, places[start])
        return found

    def holds_own(self, owner: str, text: str) -> bool:
        """Whether a job's canary, or a fragment of it, is in a text."""
        letters, _ = _letters(text)
        return any(self._owners.get(fragment) == owner for fragment in _fragments(letters))


class Sayings:
    """Canaries of recordings, which can carry none: three words in a row that one transcript alone has."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[tuple[str, ...]]] = {}

    def learn(self, owner: str, transcript: str) -> None:
        """Take what a job said alone for its own."""
        self._of[owner] = frozenset(_sayings(transcript))

    def strangers(self, owner: str, text: str) -> set[str]:
        """Owners of what is in the text of a job that was learned, and wasn't when it ran alone."""
        own = self._of.get(owner)
        if own is None:
            return set()
        foreign = set(_sayings(text)) - own
        return {other for other, sayings in self._of.items() if sayings & foreign}


def _letters(text: str) -> tuple[str, list[int]]:
    """The letters of a text alone, in lower case, and the place of each: a leak may be split or spaced out."""
    lowered = text.lower() if text.isascii() else "".join(map(_lower, text))
    places = [place for place, letter in enumerate(lowered) if "a" <= letter <= "z"]
    return _NOT_A_LETTER.sub("", lowered), places


def _lower(letter: str) -> str:
    """One letter for one, so that places stay what they are."""
    lowered = letter.lower()
    return lowered if len(lowered) == 1 else letter


def _fragments(letters: str) -> Iterator[str]:
    for start in range(len(letters) - _FRAGMENT + 1):
        yield letters[start : start + _FRAGMENT]


def _sayings(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    for saying in zip(words, words[1:], words[2:], strict=False):
        if max(map(len, saying)) >= _LONG_WORD:
            yield saying
