"""Prompts that take the texts of earlier steps: ``{transcript.text}``; ``{{transcript.text}}`` is that text itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["filled", "taken"]

_NAME: Final = r"[a-z][a-z0-9_]*"
#: Whatever else stands between braces is left alone: prompts hold JSON and code.
_PLACE: Final = re.compile(rf"\{{\{{({_NAME})\.text\}}\}}|\{{({_NAME})\.text\}}")


def taken(prompt: str) -> tuple[str, ...]:
    """Names of the steps whose texts a prompt takes, each once, in order."""
    return tuple(dict.fromkeys(found[2] for found in _PLACE.finditer(prompt) if found[2]))


def filled(prompt: str, texts: Mapping[str, str]) -> str:
    """The prompt with the texts in their places; ``KeyError`` if one is missing.

    A text is put in as it is: what it holds between braces takes nothing.
    """
    return _PLACE.sub(lambda found: texts[found[2]] if found[2] else f"{{{found[1]}.text}}", prompt)
