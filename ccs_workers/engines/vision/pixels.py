"""Turns pictures into what the PP-OCR models were trained on; numpy and Pillow only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["finder_pixels", "reader_pixels"]

#: Mean and deviation of the finder's training pictures, in the order of its channels: blue, green, red.
_FINDER_MEAN: Final = np.array([0.485, 0.456, 0.406], np.float32)
_FINDER_DEVIATION: Final = np.array([0.229, 0.224, 0.225], np.float32)
#: The finder halves the picture five times.
_FINDER_STEP: Final = 32
_LARGEST_MAGNIFICATION: Final = 3.0
_READER_HEIGHT: Final = 48
_READER_LEAST_WIDTH: Final = 320
_READER_MOST_WIDTH: Final = 3200
_READER_CENTER: Final = np.float32(0.5)


def finder_pixels(image: Image.Image, longest_side: int) -> NDArray[np.float32]:
    """Return (3, height, width) of an RGB picture, its longest side about ``longest_side``."""
    ratio = min(longest_side / max(image.size), _LARGEST_MAGNIFICATION)
    width, height = (max(1, round(side * ratio / _FINDER_STEP)) * _FINDER_STEP for side in image.size)
    return _planes(image.resize((width, height), Image.Resampling.BILINEAR), _FINDER_MEAN, _FINDER_DEVIATION)


def reader_pixels(line: Image.Image) -> NDArray[np.float32]:
    """Return (3, 48, width) of an RGB picture of one line, a short one filled up with gray on the right."""
    natural = math.ceil(_READER_HEIGHT * line.width / line.height)
    width = min(_READER_MOST_WIDTH, max(16, natural))
    scaled = line.resize((width, _READER_HEIGHT), Image.Resampling.BILINEAR)
    planes = _planes(scaled, _READER_CENTER, _READER_CENTER)
    return np.pad(planes, ((0, 0), (0, 0), (0, max(0, _READER_LEAST_WIDTH - width))))


def _planes(
    image: Image.Image, mean: NDArray[np.float32] | np.float32, deviation: NDArray[np.float32] | np.float32
) -> NDArray[np.float32]:
    blue_first = np.asarray(image, np.float32)[:, :, ::-1] / np.float32(255)
    return np.ascontiguousarray(((blue_first - mean) / deviation).transpose(2, 0, 1))
