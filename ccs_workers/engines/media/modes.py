"""Makes every image mode 8-bit RGB, on white where it is transparent; by strips, to bound memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["to_rgb"]

#: Pixels converted at once.
_STRIP_PIXELS: Final = 1 << 20
_BYTE, _WORD = 255.0, 65535.0


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image of any mode as RGB.

    Modes of more than 8 bits: 16 bits keep their whole range; 32-bit integers count as 8 bits up to 255 and
    as 16 up to 65,535; floats count as fractions up to 1 and as 8 bits up to 255. Any other range is
    stretched to black…white, and what isn't a number is black.
    """
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    deep = image.mode == "F" or image.mode.startswith("I")
    span = _span(image) if deep else (0.0, _BYTE)
    rgb = Image.new("RGB", image.size, "white")
    for top, strip in _strips(image):
        if deep:
            rgb.paste(_eight_bits(strip, span), (0, top))
        elif image.has_transparency_data:
            layer = strip.convert("RGBA")
            rgb.paste(layer, (0, top), layer)
        else:
            rgb.paste(strip.convert("RGB"), (0, top))
    return rgb


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        yield top, image.crop((0, top, width, min(height, top + rows)))


def _values(strip: Image.Image) -> NDArray[np.float64]:
    return np.asarray(strip).astype(np.float64)


def _span(image: Image.Image) -> tuple[float, float]:
    """Return the values that are black and white."""
    if image.mode.startswith("I;16"):
        return 0.0, _WORD
    least, most = math.inf, -math.inf
    for _, strip in _strips(image):
        values = _values(strip)
        values = values[np.isfinite(values)]
        if values.size:
            least, most = min(least, float(values.min())), max(most, float(values.max()))
    if least > most:
        return 0.0, 1.0
    usual = (1.0, _BYTE) if image.mode == "F" else (_BYTE, _WORD)
    for white in usual:
        if least >= 0 and most <= white:
            return 0.0, white
    return least, most


def _eight_bits(strip: Image.Image, span: tuple[float, float]) -> Image.Image:
    black, white = span
    scaled = (_values(strip) - black) * (_BYTE / max(white - black, 1e-12))
    bounded = np.nan_to_num(np.clip(scaled, 0.0, _BYTE), nan=0.0)
    return Image.fromarray(np.rint(bounded).astype(np.uint8)).convert("RGB")
