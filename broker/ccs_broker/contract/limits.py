"""Bounds on everything that can enter a job; both sides check against the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024

#: Longest time a job may wait or run: seven days.
MAX_LIFETIME_S: Final = 7 * 24 * 3600.0
#: Longest name of a tenant, a model alias or an idempotency key, in characters.
MAX_NAME_CHARS: Final = 128
#: Most new tokens one job may ask for.
MAX_NEW_TOKENS: Final = 32_768
#: Most stop strings, and the longest of them in characters.
MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARS: Final = 256
#: Most parts (texts, pictures, sounds) of one job.
MAX_PARTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes a client refuses beyond, before anything is sent."""

    #: UTF-8 bytes of all text parts together.
    text_bytes: int = 1 * MIB
    #: Bytes of one encoded picture.
    image_bytes: int = 32 * MIB
    #: Bytes of one encoded sound.
    audio_bytes: int = 128 * MIB
    #: Bytes of all media of one job.
    media_bytes: int = 160 * MIB
    #: Bytes of ``metadata`` as JSON.
    metadata_bytes: int = 16 * 1024


DEFAULT_LIMITS: Final = Limits()
