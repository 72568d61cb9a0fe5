"""What a caller may hand over as a picture or a sound, and how it becomes bytes or a reference; no I/O."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import unquote_to_bytes

from pydantic import ValidationError

from ccs_broker.contract.parts import MediaRef
from ccs_broker.contract.wire import invalid_input
from ccs_broker.errors import InvalidInputError, PayloadTooLargeError, UnsupportedMediaError

#: A path, bytes, a ``data:`` URL, a reference to what is stored already, or either as JSON has it.
MediaInput = str | os.PathLike[str] | bytes | bytearray | memoryview | MediaRef | Mapping[str, object]

_DATA_URL: Final = "data:"
_OTHER_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
#: Line ends and blanks that tools put into base64.
_BLANKS: Final = str.maketrans("", "", " \t\r\n")
_PADDING: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSlot:
    """Where a medium goes, for error messages, and the bytes it may have."""

    field: str
    limit_name: str
    limit_bytes: int

    def check(self, size_bytes: int) -> None:
        """``PayloadTooLargeError`` over the limit, ``InvalidInputError`` if there is nothing."""
        if size_bytes > self.limit_bytes:
            raise PayloadTooLargeError(
                f"{self.field}: {size_bytes} bytes are over the limit {self.limit_name} of {self.limit_bytes}"
            )
        if size_bytes == 0:
            raise InvalidInputError(f"{self.field}: is empty")


#: Reads the file at a path within a slot's limit.
PathReader = Callable[[str | os.PathLike[str], MediaSlot], bytes]


def refuse_paths(path: str | os.PathLike[str], slot: MediaSlot) -> bytes:
    """The reader for what comes over the wire: a path there would name a file of some worker."""
    raise UnsupportedMediaError(
        f"{slot.field}: give base64 or a reference; files are read by the client only"
    )


def reference_to(data: bytes) -> MediaRef:
    """The reference under which bytes are stored."""
    return MediaRef(sha256=sha256(data).hexdigest(), size_bytes=len(data))


def load_media(item: object, slot: MediaSlot, read_path: PathReader) -> MediaRef | bytes:
    """Turn what the caller gave into bytes to upload, or the reference it is.

    Raises:
        PayloadTooLargeError: over the slot's limit, found before it is read or decoded where possible.
        UnsupportedMediaError: a URL other than ``data:``.
        InvalidInputError: no such file, not base64, empty, or nothing of the kind.
    """
    if isinstance(item, bytes | bytearray | memoryview):
        slot.check(item.nbytes if isinstance(item, memoryview) else len(item))
        return bytes(item)
    if isinstance(item, str):
        return _from_text(item, slot, read_path)
    if isinstance(item, os.PathLike):
        return read_path(item, slot)
    if isinstance(item, Mapping):
        item = _from_mapping(item, slot)
    if isinstance(item, MediaRef):
        slot.check(item.size_bytes)
        return item
    if isinstance(item, bytes):
        return item
    raise InvalidInputError(
        f"{slot.field}: should be a path, bytes, a data: URL or a reference, not {type(item).__name__}"
    )


def _from_text(text: str, slot: MediaSlot, read_path: PathReader) -> bytes:
    if text[: len(_DATA_URL)].lower() == _DATA_URL:
        header, comma, payload = text.partition(",")
        if not comma:
            raise InvalidInputError(f"{slot.field}: a data: URL without a comma")
        if header.lower().endswith(";base64"):
            return _from_base64(payload, slot)
        # Percent-encoding takes one to three characters a byte.
        slot.check(-(-len(payload) // 3))
        data = unquote_to_bytes(payload)
        slot.check(len(data))
        return data
    if _OTHER_URL.match(text):
        raise UnsupportedMediaError(
            f"{slot.field}: URLs are not fetched; give a path, bytes, a data: URL or a reference"
        )
    return read_path(text, slot)


def _from_base64(text: str, slot: MediaSlot) -> bytes:
    # Refused by length before a copy is made; blanks are a few percent at most.
    if len(text) // 2 > slot.limit_bytes:
        slot.check(len(text) * 3 // _PADDING)
    packed = text.translate(_BLANKS)
    slot.check(len(packed) * 3 // _PADDING - packed[-2:].count("="))
    try:
        data = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(f"{slot.field}: is not base64") from None
    slot.check(len(data))
    return data


def _from_mapping(item: Mapping[str, object], slot: MediaSlot) -> MediaRef | bytes:
    encoded = item.get("base64")
    if isinstance(encoded, str):
        return _from_base64(encoded, slot)
    try:
        return MediaRef.model_validate(dict(item))
    except ValidationError as error:
        raise InvalidInputError(f"{slot.field}: {invalid_input(error).message}") from None
