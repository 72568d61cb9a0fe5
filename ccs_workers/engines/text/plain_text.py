"""Encodes a caller's text so that the names of special tokens in it stay text, whatever surrounds it.

Tokenizers look for special tokens in the whole text, so that a prompt which holds ``<|im_end|>`` could end its own turn
and begin another one's. The text is therefore cut at the special tokens that the template itself has written. What
lies between two of them is encoded by a twin of the tokenizer that knows no special tokens.
"""

from __future__ import annotations

import re
import threading
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable


class PlainText:
    """Encodes texts that hold names of special tokens, for one tokenizer, whose own state is never changed."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._specials = {
            str(token): (number, token)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        # The longest first: one name may begin with another.
        names = sorted(self._specials, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._lock = threading.Lock()
        self._twin: Any = None

    def holds_special(self, text: str) -> bool:
        """Whether a text holds the name of a special token."""
        return self._names is not None and self._names.search(text) is not None

    def encode(self, prompt: str, render: Callable[[str], str]) -> list[int]:
        """The ids of a prompt as ``render`` puts it into its template; only the template's special tokens count."""
        assert self._names is not None
        # Nobody can write what is drawn after he has written.
        mark = token_hex(16)
        found: list[str] = []

        def hide(match: re.Match[str]) -> str:
            found.append(match[0])
            return f"{mark}:{len(found) - 1};"

        def show(text: str) -> str:
            return re.sub(f"{mark}:(\\d+);", lambda match: found[int(match[1])], text)

        ids: list[int] = []
        rendered = render(self._names.sub(hide, prompt))
        end, strip = 0, False
        for match in self._names.finditer(rendered):
            number, token = self._specials[match[0]]
            between = rendered[end : match.start()]
            ids += self._plain(show(_stripped(between, left=strip, right=token.lstrip)))
            ids.append(number)
            end, strip = match.end(), token.rstrip
        return ids + self._plain(show(_stripped(rendered[end:], left=strip, right=False)))

    def _plain(self, text: str) -> list[int]:
        """The ids of a text without any special token."""
        if not text:
            return []
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        with self._lock:
            if self._twin is None:
                # Made for the first text that needs it, since most servers never see one.
                self._twin = Tokenizer.from_str(self._backend.to_str())
                self._twin.encode_special_tokens = True
        return list(self._twin.encode(text, add_special_tokens=False).ids)


def _stripped(text: str, *, left: bool, right: bool) -> str:
    """A text without the blanks that the special tokens beside it swallow."""
    text = text.lstrip() if left else text
    return text.rstrip() if right else text
