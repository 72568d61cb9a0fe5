"""Media in Redis: stored under their SHA-256, bounded, checked when they are read; no I/O here.

A medium is uploaded with a short life. Publishing prolongs it for as long as its jobs may live; the last of
them to end shortens it again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from ccs_broker import topology
from ccs_broker.errors import InternalError, NotFoundError

if TYPE_CHECKING:
    from ccs_broker.contract.parts import MediaRef

#: Seconds a medium lives whose job has not been published.
UPLOAD_TTL_S: Final = 300
#: Characters of a digest that messages show.
_SHOWN: Final = 12


def put_blob(sha: str, data: bytes) -> tuple[str | int | bytes, ...]:
    """The command that stores a medium.

    It leaves one that is there untouched: its life may be in the hands of other jobs.
    """
    return ("SET", topology.BLOB + sha, data, "NX", "EX", UPLOAD_TTL_S)


def get_blob(reference: MediaRef) -> tuple[str | int, ...]:
    """The command that reads a medium, and not much more than its size, whatever lies there."""
    return ("GETRANGE", topology.BLOB + reference.sha256, 0, reference.size_bytes)


def read_blob(reference: MediaRef, reply: object) -> bytes:
    """The bytes a reference names.

    Raises:
        NotFoundError: the medium is gone.
        InternalError: what is stored isn't what the reference names.
    """
    data = reply if isinstance(reply, bytes) else b""
    if not data:
        raise NotFoundError(f"medium {reference.sha256[:_SHOWN]} is not in the store (any more)")
    if len(data) != reference.size_bytes or sha256(data).hexdigest() != reference.sha256:
        raise InternalError(f"medium {reference.sha256[:_SHOWN]} does not match its digest")
    return data
