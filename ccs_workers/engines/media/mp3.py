"""Makes libsndfile read MP3 files to their end: it trusts a header that may be absent or tell of a part only.

libsndfile guesses the length of an MP3 without a Xing header from its first frame, and takes that of joined
files from the first one; what lies beyond is dropped in silence. So the frames are counted here, and
where there are more than the header tells, the header is put right in the copy that is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["with_true_length"]

_MPEG1, _MPEG2, _MPEG25 = 3, 2, 0
_LAYER_3: Final = 1
_LOW_RATES_KBPS: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_KBPS: Final = {
    _MPEG1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    _MPEG2: _LOW_RATES_KBPS,
    _MPEG25: _LOW_RATES_KBPS,
}
_HZ: Final = {
    _MPEG1: (44100, 48000, 32000),
    _MPEG2: (22050, 24000, 16000),
    _MPEG25: (11025, 12000, 8000),
}
#: Bytes between a frame's header and the place of a Xing header: (mono, stereo).
_SIDE_INFO_BYTES: Final = {_MPEG1: (17, 32), _MPEG2: (9, 17), _MPEG25: (9, 17)}
_HEADER_BYTES: Final = 4
_MONO: Final = 3
_FRAME_COUNT_FLAG: Final = 1
#: The header's own frame and the encoder's padding at both ends hold no sound.
_SLACK_FRAMES: Final = 5
#: 128 kbit/s at MPEG 1 and 80 at the others: room enough for the Xing header.
_ROOMY_RATE_INDEX: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    size_bytes: int
    samples: int
    side_info_bytes: int


def with_true_length(data: bytes, told_samples: int) -> bytes:
    """Return ``data``, or a copy that tells all its frames if ``told_samples`` are fewer than it has."""
    first = _skip_tags(data, 0)
    frame = _frame_at(data, first)
    if frame is None:
        return data
    count = _count_frames(data, first)
    if told_samples >= (count - _SLACK_FRAMES) * frame.samples:
        return data
    mark = first + _HEADER_BYTES + frame.side_info_bytes
    if data[mark : mark + 4] in (b"Xing", b"Info") and data[mark + 7] & _FRAME_COUNT_FLAG:
        return data[: mark + 8] + (count - 1).to_bytes(4, "big") + data[mark + 12 :]
    return data[:first] + _xing_frame(data[first : first + _HEADER_BYTES], count) + data[first:]


def _frame_at(data: bytes, position: int) -> _Frame | None:
    """Read the header of a layer III frame; None where there is none."""
    header = int.from_bytes(data[position : position + _HEADER_BYTES], "big")
    version, layer = header >> 19 & 3, header >> 17 & 3
    rate_index, hz_index = header >> 12 & 15, header >> 10 & 3
    if header >> 21 != 0x7FF or version not in _KBPS or layer != _LAYER_3:  # noqa: PLR2004 - eleven set bits
        return None
    if rate_index in (0, 15) or hz_index not in range(3):
        return None
    samples = 1152 if version == _MPEG1 else 576
    size = samples // 8 * _KBPS[version][rate_index] * 1000 // _HZ[version][hz_index] + (header >> 9 & 1)
    stereo = header >> 6 & 3 != _MONO
    return _Frame(size_bytes=size, samples=samples, side_info_bytes=_SIDE_INFO_BYTES[version][stereo])


def _count_frames(data: bytes, first: int) -> int:
    count, position = 0, first
    while position < len(data):
        frame = _frame_at(data, position)
        if frame is None:
            after = _skip_tags(data, position)
            if after == position:
                break
            position = after
            continue
        position += frame.size_bytes
        count += 1
    return count


def _skip_tags(data: bytes, position: int) -> int:
    """Return where an ID3 tag at ``position`` ends; ``position`` where there is none."""
    if data.startswith(b"ID3", position) and position + 10 <= len(data):
        size = 0
        for byte in data[position + 6 : position + 10]:
            size = size << 7 | byte & 0x7F
        return position + 10 + size
    if data.startswith(b"TAG", position):
        return position + 128
    return position


def _xing_frame(header: bytes, count: int) -> bytes:
    """Return a silent frame of the same kind that tells how many follow."""
    made = bytearray(header)
    made[1] |= 1  # no checksum
    made[2] = _ROOMY_RATE_INDEX << 4 | made[2] & 0x0C  # no padding
    frame = _frame_at(bytes(made), 0)
    if frame is None:
        return b""
    made += bytes(frame.side_info_bytes) + b"Xing"
    made += _FRAME_COUNT_FLAG.to_bytes(4, "big") + count.to_bytes(4, "big")
    return bytes(made) + bytes(frame.size_bytes - len(made))
