"""Commands as bytes for the socket, large values in pieces so that a deadline can be watched between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hiredis import pack_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.client.steps import Command

#: Values over this are sent from where they lie, in pieces of this many bytes.
PIECE_BYTES: Final = 1024 * 1024


def pack(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """Encode commands in RESP, as pieces to be sent one after another."""
    pieces: list[bytes | memoryview] = []
    small: list[bytes] = []
    for command in commands:
        if not any(type(value) is bytes and len(value) > PIECE_BYTES for value in command):
            # The stub of hiredis means a tuple of any length.
            small.append(pack_command(command))  # type: ignore[arg-type]
            continue
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            value = argument if isinstance(argument, bytes) else str(argument).encode()
            small.append(b"$%d\r\n" % len(value))
            if len(value) > PIECE_BYTES:
                pieces.append(b"".join(small))
                view = memoryview(value)
                pieces += (view[at : at + PIECE_BYTES] for at in range(0, len(value), PIECE_BYTES))
                small = [b"\r\n"]
            else:
                small.append(value + b"\r\n")
    pieces.append(small[0] if len(small) == 1 else b"".join(small))
    return pieces
