"""Connections of the asynchronous client: the twin of ``link``, for one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ccs_broker.client.faults import unavailable
from ccs_broker.client.link import MOST_IDLE, SOCKET_SHARE, budget_s, connection_options
from ccs_broker.client.packing import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio.connection import AbstractConnection

    from ccs_broker.client.steps import Command
    from ccs_broker.settings import BrokerSettings


class AsyncLink:
    """The connections of one client to one server; for the tasks of one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._timeout_s = settings.timeout_s
        self._stall_s = settings.timeout_s * SOCKET_SHARE
        self._class, self._options, self.where = connection_options(
            settings.url, settings.timeout_s, ConnectionPool
        )
        # The deadlines here are the loop's own.
        self._options |= {"socket_timeout": None}
        self._idle: deque[AbstractConnection] = deque()
        self._most_idle = MOST_IDLE

    async def ask(self, commands: Sequence[Command]) -> list[object]:
        """As :meth:`ccs_broker.client.link.Link.ask`."""
        pieces = pack(commands)
        sent = lost = False
        try:
            async with asyncio.timeout(budget_s(self._timeout_s, pieces)):
                if self._idle:
                    sent = True
                    try:
                        return await self._exchange(self._idle.pop(), pieces, len(commands))
                    except (RedisError, OSError) as error:
                        if isinstance(error, RedisTimeoutError | TimeoutError):
                            raise
                        lost, sent = True, False
                connection = await self._connect()
                sent = True
                return await self._exchange(connection, pieces, len(commands))
        except (RedisError, OSError) as error:
            raise unavailable(error, self.where, sent=sent or lost) from error

    async def connect(self) -> AbstractConnection:
        """As :meth:`ccs_broker.client.link.Link.connect`."""
        try:
            return await self._connect()
        except (RedisError, OSError) as error:
            raise unavailable(error, self.where, sent=False) from error

    async def close(self) -> None:
        """Close the idle connections; those in use are closed after their reply."""
        self._most_idle = 0
        while self._idle:
            await self._idle.pop().disconnect()

    async def _connect(self) -> AbstractConnection:
        connection = cast("AbstractConnection", self._class(**self._options))
        try:
            # Not longer, however much there is to upload.
            async with asyncio.timeout(self._stall_s):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _exchange(
        self, connection: AbstractConnection, pieces: Sequence[bytes | memoryview], replies: int
    ) -> list[object]:
        try:
            for piece in pieces:
                # The deadline of a large upload is long; a server that takes nothing is found out earlier.
                async with asyncio.timeout(self._stall_s):
                    await connection.send_packed_command((piece,), check_health=False)  # type: ignore[arg-type]
            answers = [await read_reply(connection) for _ in range(replies)]
        except BaseException:
            # Also when cancelled between request and reply: the connection is out of step.
            await connection.disconnect(nowait=True)
            raise
        if len(self._idle) < self._most_idle:
            self._idle.append(connection)
        else:
            await connection.disconnect()
        return answers


async def read_reply(connection: AbstractConnection) -> object:
    """One reply, an error reply as its exception."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


class AsyncBell:
    """One subscription on a connection of its own."""

    def __init__(self, link: AsyncLink, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None

    async def open(self, channel: str) -> None:
        """As :meth:`ccs_broker.client.link.Bell.open`."""
        await self.close()
        connection = self._connection = await self._link.connect()
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.send_packed_command(pack([("SUBSCRIBE", channel)]), check_health=False)  # type: ignore[arg-type]
                reply = await read_reply(connection)
        except (RedisError, OSError) as error:
            await self.close()
            raise unavailable(error, self._link.where, sent=False) from error
        if isinstance(reply, ResponseError):
            await self.close()
            raise unavailable(reply, self._link.where, sent=False) from reply

    async def hear(self, seconds: float) -> bytes | None:
        """As :meth:`ccs_broker.client.link.Bell.hear`."""
        if self._connection is None:
            raise unavailable(RedisConnectionError(), self._link.where, sent=False)
        try:
            async with asyncio.timeout(seconds):
                # A read that is given up here goes on where it was with the next one.
                reply = await self._connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            return None
        except (RedisError, OSError) as error:
            await self.close()
            raise unavailable(error, self._link.where, sent=False) from error
        return cast("tuple[bytes, bytes, bytes]", reply)[2]

    async def close(self) -> None:
        """End the subscription and its connection."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)
