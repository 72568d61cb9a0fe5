"""The words of simulated answers: each depends on the job's content and its position alone."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import EngineJob

__all__ = ["audio_seconds", "digest_of", "piece_at", "text_of", "word_at"]

_WORDS: Final = (
    "amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch", "maple",
    "north", "ocean", "pearl", "quartz", "ridge", "slate", "tundra", "umber", "vale", "willow", "xenon", "yarrow",
    "zephyr",
)  # fmt: skip

_BYTES_PER_AUDIO_SECOND: Final = 32_000


def audio_seconds(job: EngineJob) -> float:
    """How long a job's sound is said to be: a second is 32,000 bytes, as in a 16 kHz 16-bit mono file."""
    return sum(map(len, job.audio)) / _BYTES_PER_AUDIO_SECOND


def digest_of(job: EngineJob) -> bytes:
    """What a simulated answer depends on: prompt, media and seed."""
    state = hashlib.blake2b(digest_size=16)
    for piece in (job.prompt.encode(), *job.images, *job.audio, str(job.seed).encode()):
        state.update(len(piece).to_bytes(8, "big") + piece)
    return state.digest()


def word_at(digest: bytes, position: int) -> str:
    """The token at a position: a word that depends on the job's digest and the position alone."""
    chosen = hashlib.blake2b(digest + position.to_bytes(8, "big"), digest_size=2).digest()
    return _WORDS[int.from_bytes(chosen, "big") % len(_WORDS)]


def piece_at(digest: bytes, position: int) -> str:
    """The text of the token at a position, as it follows what comes before."""
    word = word_at(digest, position)
    return f" {word}" if position else word


def text_of(digest: bytes, tokens: int) -> str:
    """The text of an answer's first tokens."""
    return "".join(piece_at(digest, position) for position in range(tokens))
