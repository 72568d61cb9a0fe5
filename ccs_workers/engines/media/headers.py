"""Reads from encoded pictures what Pillow tells only after work: the frames of a GIF, the size of a WebP."""

from __future__ import annotations

from typing import Final

__all__ = ["gif_frames", "webp_size"]

_GIF_HEADER_BYTES: Final = 13
_FRAME_HEADER_BYTES: Final = 10
_EXTENSION, _FRAME = 0x21, 0x2C
_WEBP_SIZE_END: Final = 30


def gif_frames(data: bytes, most: int) -> int:
    """Count the frames of a GIF up to any damage, at most one more than ``most``."""
    count = 0
    position = _GIF_HEADER_BYTES + _palette_bytes(data, 10)
    while count <= most and position < len(data):
        if data[position] == _FRAME:
            count += 1
            position += _FRAME_HEADER_BYTES + _palette_bytes(data, position + 9) + 1
        elif data[position] == _EXTENSION:
            position += 2
        else:
            break
        position = _skip_blocks(data, position)
    return count


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP; None where its header isn't one that is known."""
    if len(data) < _WEBP_SIZE_END:
        return None
    match data[12:16]:
        case b"VP8X":
            width, height = data[24:27], data[27:30]
            return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = data[26:28], data[28:30]
            return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None


def _palette_bytes(data: bytes, flags_at: int) -> int:
    flags = data[flags_at] if flags_at < len(data) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _skip_blocks(data: bytes, position: int) -> int:
    while position < len(data) and data[position]:
        position += data[position] + 1
    return position + 1
