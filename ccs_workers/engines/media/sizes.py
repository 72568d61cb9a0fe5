"""What sounds and pictures take in memory while they are decoded and used, told by their headers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ccs_workers.engines.media.audio import AudioReader
from ccs_workers.engines.media.formats import open_picture

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

    from ccs_workers.engines.media.audio import AudioLimits
    from ccs_workers.engines.media.formats import ImageLimits

__all__ = ["MediaSize", "size_of_picture", "size_of_sound"]

#: Bytes of a pixel in Pillow's memory, by mode; all others take four, RGB too.
_NARROW: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_PIXEL_BYTES: Final = 4
#: A progressive JPEG is gathered as coefficients: three planes of 16 bits.
_PROGRESSIVE_BYTES: Final = 6
#: WebP's decoder keeps a frame, the canvas and the canvas before.
_WEBP_BYTES: Final = 12
#: Of the last step of making a picture smaller; what is beyond is done by merging pixels.
_REDUCING_GAP: Final = 2.0
#: Strips in which a picture is made RGB: of a million pixels, as numbers of 64 bits where it has more than 8.
_STRIP_PIXELS: Final = 1 << 20
_STRIP_BYTES, _DEEP_STRIP_BYTES = 12, 36
#: What models' processors make of a picture before they have made it small: copies of three bytes a pixel.
_PROCESSING_BYTES: Final = 12
#: Of a second of sound at its own rate: the pieces in which it is measured, four times over.
_SCAN_S: Final = 60.0
_SCAN_BYTES: Final = 16
#: Decoded at once, whatever the rate: a block, its magnitudes, its mean.
_BLOCK_BYTES: Final = 16 << 20
#: Levels, windows and the decoder's own state.
_SECOND_BYTES: Final = 400
_DECODER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSize:
    """Bytes of one sound or picture, and how long it lasts."""

    #: What lasts from one step of its job to the next.
    held_bytes: int
    #: What is there within a step besides, at most.
    step_bytes: int
    duration_s: float = 0.0


def size_of_picture(
    data: bytes, limits: ImageLimits, *, longest_side: int, is_copied: bool = True
) -> MediaSize:
    """Return what ``decode_image`` makes of a picture, without its encoded bytes; raise what it would by the header.

    ``is_copied``: some model's processor works on the whole picture.
    """
    with open_picture(data, limits) as opened:
        width, height = opened.size
        pixels = width * height
        shrink = min(1.0, longest_side / max(width, height))
        worked_width, worked_height = max(1, round(width * shrink)), max(1, round(height * shrink))
        worked = worked_width * worked_height
        scale = _draft_scale(opened, longest_side)
        read = pixels // scale**2
        decoding = _decoding_bytes(opened, len(data), read)
        # The upright one; or before that the shrunk one, which is made of one that is as narrow but higher.
        making = held = _PIXEL_BYTES * worked
        if shrink < 1:
            making += _shrinking_bytes(height // scale, read, worked_width, worked)
        processing = _PROCESSING_BYTES * worked if is_copied else 0
        return MediaSize(held_bytes=held, step_bytes=max(decoding + making - held, processing))


def size_of_sound(data: bytes, limits: AudioLimits) -> MediaSize:
    """Return what reading a sound takes, with its encoded bytes; raise what ``AudioReader`` raises by the header."""
    with AudioReader(data, limits) as reader:
        scanned_s = min(_SCAN_S, reader.duration_s)
        return MediaSize(
            held_bytes=reader.encoded_bytes + _DECODER_BYTES + round(reader.duration_s * _SECOND_BYTES),
            step_bytes=round(scanned_s * reader.rate_hz * _SCAN_BYTES) + _BLOCK_BYTES,
            duration_s=reader.duration_s,
        )


def _shrinking_bytes(read_height: int, read: int, worked_width: int, worked: int) -> int:
    """What Pillow makes of ``read`` pixels on their way to ``worked``: first whole pixels are merged, if many."""
    merged = max(1, int(math.sqrt(read / worked) / _REDUCING_GAP))
    return _PIXEL_BYTES * ((read // merged**2 if merged > 1 else 0) + worked_width * (read_height // merged))


def _draft_scale(opened: ImageFile, longest_side: int) -> int:
    """By how much the JPEG decoder makes a side smaller while it decodes."""
    if opened.format != "JPEG":
        return 1
    ratio = max(opened.size) / longest_side
    return next(scale for scale in (8, 4, 2, 1) if ratio >= scale or scale == 1)


def _decoding_bytes(opened: ImageFile, encoded_bytes: int, read: int) -> int:
    """The decoded picture of ``read`` pixels, what its decoder needs for itself, and its RGB version."""
    width, height = opened.size
    decoded = _NARROW.get(opened.mode, _PIXEL_BYTES) * read
    total = decoded
    if opened.info.get("progressive"):
        total += _PROGRESSIVE_BYTES * width * height
    elif opened.format == "WEBP":
        total += _WEBP_BYTES * width * height + encoded_bytes
    elif opened.format in {"TIFF", "GIF"}:
        # A strip may be all of it, and it may be turned.
        total += 2 * decoded + encoded_bytes
    if opened.mode != "RGB" or "transparency" in opened.info:
        deep = opened.mode[0] in "IF"
        strip = min(_STRIP_PIXELS, read) * (_DEEP_STRIP_BYTES if deep else _STRIP_BYTES)
        total += _PIXEL_BYTES * read + strip
    return total
