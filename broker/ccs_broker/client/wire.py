"""One connection's requests and replies, straight on its socket: no more system calls than the exchange itself needs.

redis-py opens the connection (address, login, TLS, database). For each request it would then look at the socket, set
its time limits and restore them several times; a submission spends as much time on that as on the server.
"""

from __future__ import annotations

import time
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any, Final, cast

from hiredis import Reader
from redis._parsers import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.connection import AbstractConnection

_RECEIVE_BYTES: Final = 64 * 1024


class Wire:
    """Owns an open connection; used by one thread at a time."""

    def __init__(self, connection: AbstractConnection, stall_s: float) -> None:
        """``stall_s``: longest time that one write or read may make no progress."""
        self.connection = connection
        self._stall_s = stall_s
        self._socket: Any = cast("Any", connection)._sock
        self._reader = Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)

    def exchange(self, pieces: Sequence[bytes | memoryview], replies: int, deadline: float) -> list[object]:
        """Send, and read so many replies, error replies as redis-py's exceptions.

        Raises:
            TimeoutError: it isn't done by the deadline.
            OSError, RedisConnectionError: the connection is lost, or an error reply says that it is of no use (the
                server is loading, wants a login, has too many connections), as redis-py's own readers raise it.
        """
        for piece in pieces:
            self._limit(deadline)
            self._socket.sendall(piece)
        return [self.receive(deadline) for _ in range(replies)]

    def receive(self, deadline: float) -> object:
        """The next reply."""
        # False stands for "not whole yet"; RESP 2 has no such reply.
        while (answer := self._reader.gets()) is False:
            self._limit(deadline)
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise RedisConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(answer, RedisConnectionError):
            raise answer
        return cast("object", answer)

    def _limit(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(min(left_s, self._stall_s))

    def is_quiet(self) -> bool:
        """True if nothing can be read while nothing is awaited; all that could be there is the connection's end."""
        try:
            look = poll()
            look.register(self._socket, POLLIN)
            return not look.poll(0)
        except (OSError, ValueError, TypeError):
            # No socket any more.
            return False

    def close(self) -> None:
        """Close the connection."""
        self.connection.disconnect()
