"""Decodes a picture: within limits known from its header, upright, RGB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from PIL import Image

from ccs_broker.errors import InvalidImageError
from ccs_workers.engines.media.formats import BROKEN_PICTURE, ImageLimits, open_picture
from ccs_workers.engines.media.modes import to_rgb

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

__all__ = ["ImageLimits", "Picture", "check_image", "decode_image"]

_ORIENTATION_TAG: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A decoded picture and what was odd about its file."""

    #: Upright, mode RGB.
    image: Image.Image
    warnings: tuple[str, ...] = ()


def check_image(data: bytes, limits: ImageLimits) -> None:
    """Raise what ``decode_image`` raises, as far as the header gives it away."""
    open_picture(data, limits).close()


def decode_image(data: bytes, limits: ImageLimits, *, longest_side: int | None = None) -> Picture:
    """Decode a picture, made smaller where a side is longer than ``longest_side``.

    Raises:
        InvalidImageError: the bytes aren't a whole picture, or hold more pixels or frames than allowed.
        UnsupportedMediaError: a format that isn't served.
        PayloadTooLargeError: more bytes than allowed.
    """
    with open_picture(data, limits) as opened:
        try:
            if longest_side:
                _draft(opened, longest_side)
            opened.load()
            turn, warnings = _turn(opened)
            image = to_rgb(opened)
        except MemoryError:
            # Its size has been checked: it is the machine that lacks memory.
            raise
        except BROKEN_PICTURE as error:
            raise InvalidImageError(f"the picture is damaged or cut off ({type(error).__name__})") from error
        if longest_side and max(image.size) > longest_side:
            image.thumbnail((longest_side, longest_side), Image.Resampling.HAMMING, reducing_gap=2.0)
        upright = image.copy() if turn is None else image.transpose(turn)
        # Without metadata, so that nobody turns it again.
        upright.info = {}
        return Picture(image=upright, warnings=warnings)


def _draft(opened: ImageFile, longest_side: int) -> None:
    """Let the JPEG decoder leave out detail that would be thrown away; other formats can't."""
    ratio = longest_side / max(opened.size)
    if ratio < 1:
        opened.draft(None, (round(opened.width * ratio), round(opened.height * ratio)))


def _turn(opened: ImageFile) -> tuple[Image.Transpose | None, tuple[str, ...]]:
    """Return what makes the picture upright; damaged metadata is passed over with a warning."""
    if opened.format == "TIFF":
        # Pillow turns these by itself while it loads them.
        return None, ()
    try:
        if encoded := opened.info.get("exif"):
            # Read anew: Pillow has passed over damage already when it opened the file.
            Image.Exif().load(encoded)
        orientation = opened.getexif().get(_ORIENTATION_TAG)
    except BROKEN_PICTURE:
        return None, ("EXIF ignored: damaged",)
    return (_TURNS.get(orientation) if isinstance(orientation, int) else None), ()
