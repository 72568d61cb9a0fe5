"""Clips made of the sample's speech, of silence and of noise, of one window and of several."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
import soundfile
from numpy.typing import NDArray

from ccs_workers.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Callable

Samples = NDArray[np.float32]

__all__ = ["TITLES", "clip", "cut_off", "short_clip"]

_RATE_HZ: Final = 16_000
#: Seconds of the sample at which its phrases begin and end.
_PHRASES_S: Final = (0.0, 2.9, 5.2, 7.1)
#: Silence that makes two windows of what is said before and after it.
_GAP_S: Final = 26.0


def clip(title: str, variant: int) -> bytes:
    """The sound of one job, as a file; clips of another variant are louder or softer by a little."""
    samples = _SAMPLES[title]() * np.float32(0.97**variant)
    if title == "quiet stereo":
        return _encoded(np.stack([samples, samples], axis=1), "FLAC")
    return _encoded(samples, "WAV")


def short_clip(number: int) -> bytes:
    """A clip that takes little time, for neighbours."""
    phrase = number % (len(_PHRASES_S) - 1)
    return _encoded(_phrases(phrase, phrase + 1) * np.float32(0.95 ** (number % 7)), "WAV")


def cut_off(sound: bytes) -> bytes:
    """A file whose header is there and whose sound is not."""
    return sound[:30]


def _phrases(first: int, last: int) -> Samples:
    samples, _ = soundfile.read(sample_path("clip.wav"), dtype="float32")
    start, end = (round(_PHRASES_S[place] * _RATE_HZ) for place in (first, last))
    part: Samples = samples[start:end]
    return part


def _silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * _RATE_HZ), np.float32)


def _at_pace(samples: Samples, pace: float) -> Samples:
    places = np.arange(0, len(samples) - 1, pace)
    paced: Samples = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
    return paced


def _encoded(samples: Samples, container: str) -> bytes:
    stream = BytesIO()
    soundfile.write(stream, samples, _RATE_HZ, format=container, subtype="PCM_16")
    return stream.getvalue()


def _noise() -> Samples:
    grain: Samples = np.random.default_rng(7).standard_normal(2 * _RATE_HZ).astype(np.float32)
    return grain * np.float32(0.03)


#: Sorts of audio jobs, in order.
_SAMPLES: Final[dict[str, Callable[[], Samples]]] = {
    "speech": lambda: _phrases(0, 3),
    "its end": lambda: _phrases(1, 3),
    "its beginning": lambda: _phrases(0, 1),
    "two windows": lambda: np.concatenate([_phrases(0, 3), _silence(_GAP_S), _phrases(1, 2)]),
    "silence": lambda: _silence(3.0),
    "slow": lambda: _at_pace(_phrases(0, 3), 0.9),
    "noise": _noise,
    "three windows": lambda: np.concatenate(
        [_phrases(0, 1), _silence(_GAP_S), _phrases(2, 3), _silence(_GAP_S), _phrases(0, 2)]
    ),
    "quiet stereo": lambda: _phrases(0, 3) * np.float32(0.2),
    "fast": lambda: _at_pace(_phrases(0, 3), 1.15),
}
TITLES: Final = tuple(_SAMPLES)
