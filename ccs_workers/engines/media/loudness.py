"""Tells sound from silence: the level of each 20 ms, measured before any model is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FRAME_S", "LOWEST_DBFS", "LevelMeter", "has_sound"]

#: Seconds of sound that have one level.
FRAME_S: Final = 0.02
#: The level of digital silence.
LOWEST_DBFS: Final = -120.0
#: The shortest sound that can be a word: 60 ms.
_LEAST_FRAMES: Final = 3


class LevelMeter:
    """Gathers levels while a sound is read, in dB of a full-scale square wave; constant parts don't count."""

    def __init__(self, rate_hz: int) -> None:
        #: Samples that have one level.
        self.frame_samples = max(1, round(rate_hz * FRAME_S))
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)
        self._levels: list[NDArray[np.float32]] = []

    def add(self, samples: NDArray[np.float32]) -> None:
        """Take the next mono samples."""
        samples = np.concatenate([self._rest, samples])
        whole = len(samples) // self.frame_samples * self.frame_samples
        self._levels.append(_levels(samples[:whole].reshape(-1, self.frame_samples)))
        self._rest = samples[whole:].copy()

    def finish(self) -> NDArray[np.float32]:
        """Return all levels in order, the last one that of the samples left over."""
        if len(self._rest):
            self._levels.append(_levels(self._rest[None]))
            self._rest = self._rest[:0]
        return np.concatenate([np.zeros(0, np.float32), *self._levels])


def has_sound(levels: NDArray[np.float32], silence_dbfs: float | None) -> bool:
    """Tell whether 60 ms or more (all of what is shorter) are louder than the threshold; with None always."""
    if silence_dbfs is None:
        return True
    return int((levels > silence_dbfs).sum()) >= max(1, min(_LEAST_FRAMES, len(levels)))


def _levels(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    floor = 10 ** (LOWEST_DBFS / 20)
    levels: NDArray[np.float32] = 20 * np.log10(np.maximum(frames.std(axis=1), floor))
    return levels.astype(np.float32, copy=False)
