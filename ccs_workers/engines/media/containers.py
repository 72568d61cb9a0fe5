"""Refuses what libsndfile takes in silence: sound that is cut off, or several sounds in one file."""

from __future__ import annotations

import re
from typing import Final

from ccs_broker.errors import InvalidAudioError

__all__ = ["refuse_partial_sound"]

#: A chunk whose header promises more than the file holds, as libsndfile's log puts it.
_SHORT_CHUNK: Final = re.compile(r"^\s*(data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
#: The same of the whole file, for the containers whose log doesn't say it of the chunk.
_SHORT_FILE: Final = re.compile(r"^\s*(riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_SHORT_FILE_CONTAINERS: Final = frozenset({"W64", "RF64"})
#: Programs that write to a pipe can't know the length and put a number as large as the field allows.
_LENGTH_UNKNOWN: Final = 0x7FF0_0000

_PAGE_MARK: Final = b"OggS"
_PAGE_HEADER_BYTES: Final = 27
_FIRST_PAGE_FLAG: Final = 0x02


def refuse_partial_sound(data: bytes, container: str, log: str) -> None:
    """Raise ``InvalidAudioError`` if the file is cut off, or holds more sounds than libsndfile reads.

    ``container`` is libsndfile's name of the format, ``log`` what it wrote while it read the header.
    """
    if container == "OGG":
        _walk_ogg_pages(data)
        return
    pattern = _SHORT_FILE if container in _SHORT_FILE_CONTAINERS else _SHORT_CHUNK
    for _, promised, held in pattern.findall(log):
        if int(held) < int(promised) < _LENGTH_UNKNOWN:
            raise InvalidAudioError(f"the sound is cut off: {held} of {promised} bytes are there")


def _walk_ogg_pages(data: bytes) -> None:
    position = 0
    content_begun = False
    while data.startswith(_PAGE_MARK, position):
        lengths_end = position + _PAGE_HEADER_BYTES
        if lengths_end > len(data):
            raise InvalidAudioError("the sound is cut off within a page header")
        lengths_end += data[lengths_end - 1]
        page_end = lengths_end + sum(data[position + _PAGE_HEADER_BYTES : lengths_end])
        if page_end > len(data):
            raise InvalidAudioError(f"the sound is cut off: its last page lacks {page_end - len(data)} bytes")
        begins_stream = bool(data[position + 5] & _FIRST_PAGE_FLAG)
        if begins_stream and content_begun:
            raise InvalidAudioError("the file holds several sounds; send each as a job of its own")
        content_begun = content_begun or not begins_stream
        position = page_end
