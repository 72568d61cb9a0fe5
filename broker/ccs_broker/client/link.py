"""Connections of the synchronous client: one deadline over connecting, writing and reading."""

from __future__ import annotations

import os
import time
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from ccs_broker.client.faults import unavailable
from ccs_broker.client.packing import pack
from ccs_broker.client.wire import Wire
from ccs_broker.errors import ConfigurationError, QueueUnavailableError
from ccs_broker.settings import UNREADABLE_URL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.connection import AbstractConnection

    from ccs_broker.client.steps import Command
    from ccs_broker.settings import BrokerSettings

#: Idle connections kept; more may be in use at once.
MOST_IDLE: Final = 64
#: A deadline grows with what is to be uploaded, as if the network carried so many bytes a second.
SLOWEST_UPLOAD_BYTES_PER_S: Final = 4 * 1024 * 1024
#: Shares of the deadline for connecting, and for one blocking write or read.
CONNECT_SHARE: Final = 0.4
SOCKET_SHARE: Final = 0.6
#: A connection that doesn't tell redis-py's name and version takes two round trips less to open. Older releases
#: know it by other arguments, which newer ones deprecate.
_NAMELESS: Final[dict[str, None]] = (
    {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}
)


def connection_options(
    url: str, timeout_s: float, pool_class: Any = ConnectionPool
) -> tuple[Any, dict[str, Any], str]:
    """Class and arguments of the connections a URL asks for, and the address to show in errors.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    ours: dict[str, Any] = {
        "protocol": 2,
        "decode_responses": False,
        "health_check_interval": 0,
        **_NAMELESS,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_connect_timeout": timeout_s * CONNECT_SHARE,
        "socket_timeout": timeout_s * SOCKET_SHARE,
    }
    try:
        pool = pool_class.from_url(url)
        options = {**pool.connection_kwargs, **ours}
        # Made to find out whether it takes what the URL says; connects to nothing.
        pool.connection_class(**options)
    except (ValueError, TypeError):
        # The text may hold the password.
        raise ConfigurationError(UNREADABLE_URL) from None
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return pool.connection_class, options, where


def budget_s(timeout_s: float, pieces: Sequence[bytes | memoryview]) -> float:
    """Seconds for one exchange: the caller's timeout, and more for large uploads."""
    if len(pieces) == 1:
        return timeout_s
    return timeout_s + sum(map(len, pieces)) / SLOWEST_UPLOAD_BYTES_PER_S


class Link:
    """The connections of one client to one server; safe to share between threads, and after a fork."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._timeout_s = settings.timeout_s
        self._stall_s = settings.timeout_s * SOCKET_SHARE
        self._class, self._options, self.where = connection_options(settings.url, settings.timeout_s)
        self._idle: deque[Wire] = deque()
        self._most_idle = MOST_IDLE
        self._pid = os.getpid()

    def ask(self, commands: Sequence[Command]) -> list[object]:
        """Send commands in one round trip and read their replies, error replies as exceptions.

        A connection that turns out to be dead is replaced once: every command of ours may be repeated.

        Raises:
            QueueUnavailableError: no reply within the deadline.
        """
        pieces = pack(commands)
        deadline = time.monotonic() + budget_s(self._timeout_s, pieces)
        lost = False
        wire = self._take_idle()
        if wire is not None:
            try:
                return self._exchange(wire, pieces, len(commands), deadline)
            except (RedisTimeoutError, TimeoutError) as error:
                raise unavailable(error, self.where, sent=True) from error
            except (RedisError, OSError):
                lost = True
        try:
            return self._exchange(Wire(self.connect(), self._stall_s), pieces, len(commands), deadline)
        except (RedisError, OSError) as error:
            raise unavailable(error, self.where, sent=True) from error
        except QueueUnavailableError as error:
            error.maybe_accepted |= lost
            raise

    def connect(self) -> AbstractConnection:
        """A new connection, ready for commands.

        Raises:
            QueueUnavailableError: there is no server, or it doesn't answer.
        """
        connection = cast("AbstractConnection", self._class(**self._options))
        try:
            connection.connect()
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise unavailable(error, self.where, sent=False) from error
        return connection

    def close(self) -> None:
        """Close the idle connections; those in use are closed after their reply."""
        self._most_idle = 0
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> Wire | None:
        if self._pid != os.getpid():
            # The parent's sockets: forgotten here, not shut down.
            self._idle = deque()
            self._pid = os.getpid()
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return None
            if wire.is_quiet():
                return wire
            wire.close()

    def _exchange(
        self, wire: Wire, pieces: Sequence[bytes | memoryview], replies: int, deadline: float
    ) -> list[object]:
        try:
            answers = wire.exchange(pieces, replies, deadline)
        except BaseException:
            # Also when interrupted between request and reply: the connection is out of step.
            wire.close()
            raise
        if len(self._idle) < self._most_idle:
            self._idle.append(wire)
        else:
            wire.close()
        return answers


def read_reply(connection: AbstractConnection, deadline: float) -> object:
    """One reply, an error reply as its exception; redis-py's ``TimeoutError`` at the deadline."""
    if not connection.can_read(timeout=max(deadline - time.monotonic(), 0.0)):
        raise RedisTimeoutError
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


class Bell:
    """One subscription on a connection of its own."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None

    def open(self, channel: str) -> None:
        """Subscribe, and return when the server has confirmed it.

        Raises:
            QueueUnavailableError: it could not.
        """
        self.close()
        deadline = time.monotonic() + self._timeout_s
        connection = self._connection = self._link.connect()
        try:
            connection.send_packed_command(pack([("SUBSCRIBE", channel)]), check_health=False)
            reply = read_reply(connection, deadline)
        except (RedisError, OSError) as error:
            self.close()
            raise unavailable(error, self._link.where, sent=False) from error
        if isinstance(reply, ResponseError):
            self.close()
            raise unavailable(reply, self._link.where, sent=False) from reply

    def hear(self, seconds: float) -> bytes | None:
        """The next message, or None after so many seconds.

        Raises:
            QueueUnavailableError: the connection is lost; messages may be.
        """
        if self._connection is None:
            raise unavailable(RedisConnectionError(), self._link.where, sent=False)
        try:
            if not self._connection.can_read(timeout=seconds):
                return None
            _, _, message = cast("tuple[bytes, bytes, bytes]", self._connection.read_response())
        except (RedisError, OSError) as error:
            self.close()
            raise unavailable(error, self._link.where, sent=False) from error
        return message

    def close(self) -> None:
        """End the subscription and its connection."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
