"""Recognizes the picture formats that are served and opens them without decoding, within limits of its own.

Pillow's plugins are called directly: that keeps formats nobody meant (PostScript, say) out, and leaves alone
Pillow's own limit on pixels, which belongs to the whole process.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final

from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import DecompressionBombError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ccs_broker.contract.limits import DEFAULT_LIMITS
from ccs_broker.errors import InvalidImageError, PayloadTooLargeError, UnsupportedMediaError
from ccs_workers.engines.media.headers import gif_frames, webp_size

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

__all__ = ["BROKEN_PICTURE", "ImageLimits", "open_picture"]

#: What Pillow raises for bytes that aren't a whole picture; warnings are raised where they are made errors.
BROKEN_PICTURE: Final = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    DecompressionBombError,
    Warning,
)

_PLUGINS: Final[tuple[tuple[bytes, type[ImageFile]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"\xff\xd8\xff", JpegImageFile),
    (b"GIF8", GifImageFile),
    (b"BM", BmpImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
)
#: Well-known formats that aren't served, by (offset, signature).
_STRANGERS: Final = (
    (0, b"%PDF", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"8BPS", "Photoshop"),
    (4, b"ftyp", "HEIF, AVIF or MP4"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\0\0\x01\0", "icon"),
    (8, b"WAVE", "WAV sound"),
)
_SERVED: Final = "PNG, JPEG, WebP, GIF, BMP and TIFF are served"
#: Formats whose plugin knows the number of frames without looking for them.
_COUNTED: Final = frozenset({"PNG", "WEBP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What a picture may have; all are read from the header."""

    #: Of the encoded file.
    size_bytes: int = DEFAULT_LIMITS.image_bytes
    pixels: int = 50_000_000
    #: Of an animation, whose first frame is the picture.
    frames: int = 1_000


def open_picture(data: bytes, limits: ImageLimits) -> ImageFile:
    """Open a picture without decoding it.

    Raises:
        InvalidImageError: empty, not a picture, a damaged header, or more pixels or frames than allowed.
        UnsupportedMediaError: a format that isn't served.
        PayloadTooLargeError: more bytes than allowed.
    """
    if not data:
        raise InvalidImageError("the picture is empty (0 bytes)")
    if len(data) > limits.size_bytes:
        raise PayloadTooLargeError(f"{len(data)} bytes of picture; the limit is {limits.size_bytes}")
    plugin = _plugin(data)
    if plugin is WebPImageFile and (size := webp_size(data)):
        # This plugin makes room for the whole picture when it opens it.
        _check_size(*size, limits)
    if plugin is GifImageFile:
        _check_frames(gif_frames(data, limits.frames), limits)
    try:
        picture = plugin(BytesIO(data))
        frames = getattr(picture, "n_frames", 1) if picture.format in _COUNTED else 1
    except BROKEN_PICTURE as error:
        raise InvalidImageError(f"the picture's header is damaged ({type(error).__name__})") from error
    _check_size(*picture.size, limits)
    _check_frames(frames, limits)
    return picture


def _plugin(data: bytes) -> type[ImageFile]:
    for signature, plugin in _PLUGINS:
        if data.startswith(signature):
            return plugin
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return WebPImageFile
    for offset, signature, name in _STRANGERS:
        if data.startswith(signature, offset):
            raise UnsupportedMediaError(f"{name} isn't served as a picture; {_SERVED}")
    if data[:256].lstrip()[:1] == b"<":
        raise InvalidImageError("the bytes are HTML, XML or SVG, not a picture; was an error page saved?")
    raise InvalidImageError(f"the bytes aren't a picture; {_SERVED}")


def _check_size(width: int, height: int, limits: ImageLimits) -> None:
    if width < 1 or height < 1:
        raise InvalidImageError(f"a picture of {width} x {height} pixels")
    if width * height > limits.pixels:
        raise InvalidImageError(
            f"{width} x {height} pixels are {width * height}; the limit is {limits.pixels}"
        )


def _check_frames(frames: int, limits: ImageLimits) -> None:
    if frames > limits.frames:
        raise InvalidImageError(f"the animation has more than {limits.frames} frames")
