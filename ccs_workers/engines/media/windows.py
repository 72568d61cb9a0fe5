"""Cuts long sound into windows at its quietest spots, so that no word is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ccs_workers.engines.media.loudness import FRAME_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["plan_windows"]

#: How far before a window's latest end a pause is looked for.
_SEARCH_S: Final = 8.0
#: The least that is left for a last window.
_LEAST_LAST_S: Final = 1.0
#: A pause counts by its mean level over this long.
_PAUSE_S: Final = 0.3


def plan_windows(levels: NDArray[np.float32], longest: int) -> list[tuple[int, int]]:
    """Return (start, end) of each window in levels: gapless, in order, none longer than ``longest``."""
    windows = []
    start = 0
    while len(levels) - start > longest:
        end = _quietest(levels, start, longest)
        windows.append((start, end))
        start = end
    windows.append((start, len(levels)))
    return windows


def _quietest(levels: NDArray[np.float32], start: int, longest: int) -> int:
    """Return the middle of the quietest pause near the end of a window; of equals the latest."""
    latest = min(start + longest, len(levels) - round(_LEAST_LAST_S / FRAME_S))
    earliest = max(start + 1, latest - round(_SEARCH_S / FRAME_S))
    around = round(_PAUSE_S / FRAME_S / 2)
    surrounding = np.pad(levels[earliest:latest], around, mode="edge")
    means = np.convolve(surrounding, np.full(2 * around + 1, 1 / (2 * around + 1)), mode="valid")
    return latest - int(np.argmin(means[::-1]))
