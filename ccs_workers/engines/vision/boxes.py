"""Finds lines of text in the detector's map and puts them in reading order; numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scipy import ndimage

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Box", "find_boxes", "in_rows"]

#: A pixel belongs to text from this probability on.
_TEXT_PIXEL: Final = 0.3
#: A region counts as text from this mean probability on.
_TEXT_REGION: Final = 0.5
_LEAST_SIDE_PIXELS: Final = 3
#: The detector marks the core of a line only; this gives back its rim (PP-OCR's unclip ratio).
_RIM_RATIO: Final = 1.6
#: Boxes stand in one row if they share at least this part of their height, and less of their width.
_SHARED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle in pixels of the picture; right and bottom are exclusive."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left


def find_boxes(probabilities: NDArray[np.float32], width: int, height: int) -> list[Box]:
    """Return the boxes of text in a map (rows, columns) of a picture of that size, in no order."""
    rows, columns = probabilities.shape
    x_scale, y_scale = width / columns, height / rows
    regions, _ = ndimage.label(probabilities > _TEXT_PIXEL)
    boxes = []
    for number, (ys, xs) in enumerate(ndimage.find_objects(regions), start=1):
        tall, wide = ys.stop - ys.start, xs.stop - xs.start
        if min(tall, wide) < _LEAST_SIDE_PIXELS:
            continue
        if probabilities[ys, xs][regions[ys, xs] == number].mean() < _TEXT_REGION:
            continue
        rim = tall * wide * _RIM_RATIO / (2 * (tall + wide))
        boxes.append(
            Box(
                left=max(0.0, (xs.start - rim) * x_scale),
                top=max(0.0, (ys.start - rim) * y_scale),
                right=min(float(width), (xs.stop + rim) * x_scale),
                bottom=min(float(height), (ys.stop + rim) * y_scale),
            )
        )
    return boxes


def in_rows(boxes: Iterable[Box]) -> list[list[Box]]:
    """Return the boxes as rows from top to bottom, each from left to right."""
    rows: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: (box.top + box.bottom) / 2):
        if rows and all(_stand_together(other, box) for other in rows[-1]):
            rows[-1].append(box)
        else:
            rows.append([box])
    return [sorted(row, key=lambda box: box.left) for row in rows]


def _stand_together(first: Box, second: Box) -> bool:
    beside = min(first.bottom, second.bottom) - max(first.top, second.top)
    above = min(first.right, second.right) - max(first.left, second.left)
    return (
        beside >= _SHARED * min(first.height, second.height)
        # Rims of neighbors may overlap.
        and above < _SHARED * min(first.width, second.width)
    )
