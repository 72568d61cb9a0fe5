"""A model's tokenizer as the engine needs it: prompts to ids, ids to text; used by any number of threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.errors import ConfigurationError, InvalidInputError
from ccs_workers.engines.text.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    byte_level_piece,
)
from ccs_workers.engines.text.plain_text import PlainText

if TYPE_CHECKING:
    from ccs_workers.engines.text.options import TextOptions

#: One, two, three and four bytes a character, a joined emoji, spaces and a combining accent.
_SAMPLE: Final = "a  b\n é ж 你好 مرحبا 👩‍👩‍👧 e\u0301"


class Vocabulary:
    """Nothing of the tokenizer is changed after construction: no padding, no truncation, no side effects."""

    def __init__(self, tokenizer: Any, options: TextOptions, alias: str) -> None:
        self._tokenizer = tokenizer
        self._system = options.system
        self._chat = options.chat and bool(tokenizer.chat_template)
        # The library behind fast tokenizers; absent behind those written in Python.
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_padding()
            self._backend.no_truncation()
        self._plain_text = PlainText(tokenizer)
        self._raw = options.special_tokens
        self._special = frozenset(
            {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
            | set(tokenizer.all_special_ids)
        )
        self._pieces: dict[int, bytes] = {}
        self._byte_level = self._backend is not None and self._is_byte_level()
        self._check_template(alias)
        self._frame = self._find_frame()

    def encode(self, prompt: str) -> list[int]:
        """Return the ids of a prompt, within the chat template where the model has one.

        Names of special tokens in the prompt are text like any other, unless option ``special_tokens`` says otherwise.

        Raises:
            InvalidInputError: the prompt is empty, or isn't text (half of a surrogate pair).
        """
        if not prompt:
            raise InvalidInputError("the prompt is empty")
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise InvalidInputError("the prompt holds half of a surrogate pair") from None
        ids = self._whole(prompt)
        if not ids:
            raise InvalidInputError("the prompt has no tokens")
        return ids

    def _whole(self, prompt: str) -> list[int]:
        if self._raw or not self._plain_text.holds_special(prompt):
            # A template writes the special tokens itself.
            text = self._render(prompt) if self._chat else prompt
            return self._encode(text, special=not self._chat)
        if self._chat:
            return self._plain_text.encode(prompt, self._render)
        # Whatever special tokens the tokenizer puts around any text stand around this one too.
        before, after = self._frame
        return [*before, *self._plain_text.encode(prompt, lambda text: text), *after]

    def detokenizer(self) -> Detokenizer:
        """Return a new one for one job."""
        if self._byte_level:
            return ByteDetokenizer(self._piece)
        return WindowDetokenizer(self._decode, hidden=self._special)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=special).ids)
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def _decode(self, ids: list[int]) -> str:
        if self._backend is not None:
            return str(self._backend.decode(ids, skip_special_tokens=True))
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _render(self, prompt: str) -> str:
        messages = [{"role": "system", "content": self._system}] if self._system else []
        messages.append({"role": "user", "content": prompt})
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _find_frame(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and behind any text that stands in no template."""
        bare, framed = (self._encode(_SAMPLE, special=special) for special in (False, True))
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        return [], []

    def _check_template(self, alias: str) -> None:
        """Render once, so that a template which refuses system messages is met at load."""
        if self._system and not self._chat:
            raise ConfigurationError(f"model {alias!r}: option 'system' needs 'chat' and a chat template")
        if not self._chat:
            return
        try:
            self._render(_SAMPLE)
        # A template is a program of the model's maker and raises what it likes.
        except Exception as error:
            raise ConfigurationError(
                f"model {alias!r}: its chat template fails ({error}); write chat = false or drop 'system'"
            ) from error

    def _is_byte_level(self) -> bool:
        """Whether tokens are runs of bytes: the decoder says so, and a sample comes out the same."""
        decoder = json.loads(self._backend.to_str()).get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            return False
        ids = self._encode(_SAMPLE, special=False)
        return ByteDetokenizer(self._piece).push(ids) == self._decode(ids)

    def _piece(self, token_id: int) -> bytes:
        piece = self._pieces.get(token_id)
        if piece is None:
            token = None if token_id in self._special else self._backend.id_to_token(token_id)
            # Models may have more scores than the vocabulary has tokens.
            piece = self._pieces[token_id] = b"" if token is None else byte_level_piece(token)
        return piece
