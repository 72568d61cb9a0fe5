"""Prompts that take what earlier steps found: ``{transcript.text}``, ``{seen.labels}``.

``{{transcript.text}}`` is those braces themselves. Whatever else stands between braces is left alone: prompts hold JSON
and code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LABELS", "TEXT", "filled", "literal", "taken"]

#: What a prompt can take of a step: its text, and the labels of its pictures with their scores.
TEXT: Final = "text"
LABELS: Final = "labels"

_TAKEN: Final = r"([a-z][a-z0-9_]*)\.(text|labels)"
_PLACE: Final = re.compile(rf"\{{\{{{_TAKEN}\}}\}}|\{{{_TAKEN}\}}")
_SINGLE: Final = re.compile(rf"\{{{_TAKEN}\}}")


def taken(prompt: str) -> tuple[str, ...]:
    """Names of the steps that a prompt takes something of, each once, in order."""
    return tuple(dict.fromkeys(found[3] for found in _PLACE.finditer(prompt) if found[3]))


def filled(prompt: str, found: Mapping[tuple[str, str], str]) -> str:
    """The prompt with what was found, by step and kind, in its places; ``KeyError`` if one is missing.

    A text is put in as it is: what it holds between braces takes nothing.
    """

    def put(place: re.Match[str]) -> str:
        return found[place[3], place[4]] if place[3] else place[0][1:-1]

    return _PLACE.sub(put, prompt)


def literal(text: str) -> str:
    """A text as a part of a prompt that takes nothing there."""
    return _SINGLE.sub(lambda place: f"{{{place[0]}}}", text)
