"""Commands on the socket: RESP to the byte, large values uncopied and in pieces."""

from __future__ import annotations

import hiredis
import pytest

from ccs_broker.client.packing import PIECE_BYTES, pack

SMALL = ("SET", "key é", b"\0\r\n", 12, "")


def joined(pieces):
    return b"".join(bytes(piece) for piece in pieces)


def test_small_commands_are_one_piece():
    assert pack([SMALL, ("PING",)]) == [
        b"*5\r\n$3\r\nSET\r\n$6\r\nkey \xc3\xa9\r\n$3\r\n\0\r\n\r\n$2\r\n12\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n"
    ]


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1])
def test_large_values_are_sent_in_pieces(size):
    commands = [SMALL, ("SET", b"x" * size, b"y" * size, "EX", 3), ("PING",)]
    pieces = pack(commands)
    assert joined(pieces) == b"".join(hiredis.pack_command(command) for command in commands)
    if size > PIECE_BYTES:
        assert max(map(len, pieces)) == PIECE_BYTES
        assert len(pieces) == 3 + 2 * -(-size // PIECE_BYTES)
