"""Joins the texts of windows so that they read as one."""

from __future__ import annotations

import unicodedata

__all__ = ["continuation"]


def continuation(last: str, text: str) -> str:
    """Return ``text`` as it follows a text that ended with the character ``last``; empty: there is none.

    A space goes between, except between characters of scripts that write none.
    """
    text = text.strip()
    if not text or not last or last.isspace() or (_is_wide(last) and _is_wide(text[0])):
        return text
    return f" {text}"


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")
