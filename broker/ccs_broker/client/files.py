"""Reads the media files a caller names; the only place of the client that touches the file system."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ccs_broker.errors import InvalidInputError

if TYPE_CHECKING:
    from ccs_broker.contract.media import MediaSlot


def read_file(path: str | os.PathLike[str], slot: MediaSlot) -> bytes:
    """All bytes of a file, which is looked at before it is opened: a pipe or a device may have no end.

    Raises:
        PayloadTooLargeError: over the slot's limit.
        InvalidInputError: no such file, not a plain file, empty, or not readable.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInputError(f"{slot.field}: is not a plain file")
        slot.check(found.st_size)
        with open(path, "rb") as file:
            data = file.read(slot.limit_bytes + 1)
    except (OSError, ValueError) as error:
        # ValueError: a null character in the path. The path itself may be what was meant as content.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "not a path"
        raise InvalidInputError(f"{slot.field}: can't read the file ({reason})") from None
    slot.check(len(data))
    return data
