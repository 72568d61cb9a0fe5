"""Turns token ids into text piece by piece: whole characters, nothing taken back, bounded work per token."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

#: What decoders write for bytes that aren't UTF-8.
REPLACEMENT: Final = "\ufffd"
#: A character has at most four bytes, so at most three tokens can wait for the rest of one.
_LONGEST_HOLD: Final = 3
#: Tokens without any text, after which they are forgotten rather than decoded again.
_LONGEST_SILENCE: Final = 8


class Detokenizer(Protocol):
    """One job's text so far; the pieces returned, joined, are its text."""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next tokens; return the text they complete, which may be empty."""

    def finish(self) -> str:
        """Return what is still held back; a character that is cut off is dropped."""


class ByteDetokenizer:
    """For byte-level vocabularies: each token is a run of bytes, and their sequence is the text. Exact."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join(map(self._piece, ids)))

    def finish(self) -> str:
        self._utf8.reset()
        return ""


class WindowDetokenizer:
    """For any other vocabulary: decodes the tokens since the last piece behind those of the piece before it.

    The piece before gives the decoder its context (spaces between words, say); ``decode`` must give the same
    text for the same tokens whatever follows them, but for a cut character at the end. ``hidden`` tokens have
    no text and would be no context either.
    """

    def __init__(self, decode: Callable[[list[int]], str], hidden: Container[int] = ()) -> None:
        self._decode = decode
        self._hidden = hidden
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self._push_one(token_id) for token_id in ids if token_id not in self._hidden)

    def finish(self) -> str:
        return self._new_text().rstrip(REPLACEMENT)

    def _push_one(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._pending) <= _LONGEST_HOLD:
            return ""
        if text:
            self._context, self._pending = self._pending, []
            self._context_text = self._decode(self._context)
        elif len(self._pending) >= _LONGEST_SILENCE:
            self._pending = []
        return text

    def _new_text(self) -> str:
        if not self._pending:
            return ""
        return self._decode(self._context + self._pending)[len(self._context_text) :]


def _byte_alphabet() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 stands for itself, other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF: Final = _byte_alphabet()


def byte_level_piece(token: str) -> bytes:
    """Return the bytes behind a token of a byte-level vocabulary; an added token may stand for itself."""
    try:
        return bytes(_BYTE_OF[char] for char in token)
    except KeyError:
        return token.encode()
