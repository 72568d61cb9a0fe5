"""Streamed text on a byte-level vocabulary of 256 tokens, where most characters are several tokens."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from ccs_workers.engines.text.detokenizer import ByteDetokenizer, WindowDetokenizer, byte_level_piece

MIXED = "日本語と한국어, مرحبا بالعالم — 👩‍👩‍👧‍👦 e\u0301 Zürich\n\t𝄞 done"
FALLBACK = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def fallback_tokenizer() -> Tokenizer:
    """As Llama 2 writes text: words with a mark for the space before, bytes for everything else."""
    words = ["▁Hello", "▁world", "!", "▁"]
    vocab = {token: number for number, token in enumerate([f"<0x{byte:02X}>" for byte in range(256)] + words)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = FALLBACK
    return tokenizer


TOKENIZER = byte_tokenizer()
IDS = TOKENIZER.encode(MIXED).ids


def by_bytes():
    return ByteDetokenizer(lambda token_id: byte_level_piece(TOKENIZER.id_to_token(token_id)))


def by_window():
    return WindowDetokenizer(TOKENIZER.decode)


KINDS = pytest.mark.parametrize("make", [by_bytes, by_window])


def test_every_character_of_the_sample_is_several_tokens():
    assert len(IDS) == len(MIXED.encode())


@KINDS
def test_pieces_joined_are_the_text(make):
    detokenizer = make()
    pieces = [detokenizer.push([token_id]) for token_id in IDS]
    assert "".join(pieces) + detokenizer.finish() == MIXED
    assert all("\ufffd" not in piece for piece in pieces)
    assert all(piece.encode() for piece in pieces if piece)


@KINDS
def test_a_text_cut_anywhere_ends_with_a_whole_character(make):
    for length in range(len(IDS) + 1):
        detokenizer = make()
        text = "".join(detokenizer.push([token_id]) for token_id in IDS[:length]) + detokenizer.finish()
        assert text == MIXED.encode()[:length].decode(errors="ignore")


@KINDS
@pytest.mark.parametrize("size", [2, 3, 7, 1000])
def test_how_tokens_are_grouped_changes_nothing(make, size):
    detokenizer = make()
    groups = [IDS[first : first + size] for first in range(0, len(IDS), size)]
    assert "".join(map(detokenizer.push, groups)) + detokenizer.finish() == MIXED


@KINDS
def test_text_without_spaces_comes_as_it_is_made(make):
    detokenizer = make()
    pieces = [detokenizer.push([token_id]) for token_id in TOKENIZER.encode("a" * 60).ids]
    assert pieces == ["a"] * 60


@KINDS
def test_a_replacement_character_that_the_model_wrote_stays(make):
    text = "before \ufffd after"
    detokenizer = make()
    pieces = [detokenizer.push([token_id]) for token_id in TOKENIZER.encode(text).ids]
    assert "".join(pieces) + detokenizer.finish() == text


def test_invalid_bytes_come_out_as_the_tokenizer_decodes_them():
    numbers = random.Random(7)
    for _ in range(200):
        ids = [numbers.randrange(256) for _ in range(40)] + TOKENIZER.encode(".").ids
        detokenizer = by_bytes()
        assert "".join(detokenizer.push([token_id]) for token_id in ids) == TOKENIZER.decode(ids)


def test_invalid_bytes_never_hold_text_back_for_long():
    invalid = TOKENIZER.encode("é").ids[1]
    detokenizer = by_window()
    text = "".join(detokenizer.push([invalid]) for _ in range(100))
    assert 96 <= len(text) <= 100


def test_a_window_stays_small_however_long_the_text():
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return TOKENIZER.decode(ids)

    detokenizer = WindowDetokenizer(decode)
    for token_id in IDS * 40:
        detokenizer.push([token_id])
    assert longest <= 8


def test_words_with_marks_for_spaces_keep_them():
    tokenizer = fallback_tokenizer()
    vocab = tokenizer.get_vocab()
    ids = [vocab["▁Hello"], vocab["▁world"], *(f"<0x{byte:02X}>" for byte in "你👋".encode()), vocab["!"]]
    ids = [vocab.get(token_id, token_id) for token_id in ids]
    detokenizer = WindowDetokenizer(tokenizer.decode)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    assert pieces == ["Hello", " world", "", "", "你", "", "", "", "👋", "!"]
    assert detokenizer.finish() == ""


def test_a_hidden_token_takes_no_space_away():
    tokenizer = fallback_tokenizer()
    vocab = tokenizer.get_vocab()
    hidden = vocab["<0x00>"]
    detokenizer = WindowDetokenizer(tokenizer.decode, hidden={hidden})
    ids = [hidden, vocab["▁Hello"], hidden, hidden, vocab["▁world"], hidden]
    assert "".join(detokenizer.push([token_id]) for token_id in ids) == "Hello world"


def test_tokens_without_text_are_forgotten():
    seen: list[int] = []

    def decode(ids: list[int]) -> str:
        seen.append(len(ids))
        return "".join("x" for number in ids if number)

    detokenizer = WindowDetokenizer(decode)
    text = "".join(detokenizer.push([token_id]) for token_id in [1, *[0] * 100, 1])
    assert text == "xx"
    assert max(seen) <= 10


def test_an_added_token_outside_the_alphabet_stands_for_itself():
    assert byte_level_piece("Ġworld") == b" world"
    assert byte_level_piece("<|日本|>") == "<|日本|>".encode()
