"""Redis clients that outlive a Kombu channel: one per process and server; none waits for ever on a silent server."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ccs_broker.ledger import Ledger

if TYPE_CHECKING:
    from ccs_broker.settings import LedgerSettings

#: Seconds without a reply after which a call gives up; Kombu would wait for ever.
SOCKET_TIMEOUT_S: Final = 5.0
#: Bounds of the same for the calls that running jobs depend on; between them it is a third of the lease, so that a
#: renewal on a dead connection can be repeated on a new one in time.
_QUICK_AT_LEAST_S: Final = 0.5
_LEASE_PARTS: Final = 3
#: Where the system has them. A peer that is gone without a word is noticed within 5 s where it has to acknowledge
#: something sent, and within 8 s on a connection that only listens. A server that is merely slow acknowledges.
_PROBES: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 5000}

_lock = threading.Lock()
_ledgers: dict[tuple[object, ...], Ledger] = {}


def keepalive_options() -> dict[int, int]:
    """Socket options of TCP by which the system itself notices a peer that is gone."""
    return {getattr(socket, name): value for name, value in _PROBES.items() if hasattr(socket, name)}


def reply_timeout_s(lease_s: float) -> float:
    """Seconds to wait for the reply to a renewal, an event or an outcome; all of these are safe to repeat."""
    return max(_QUICK_AT_LEAST_S, min(SOCKET_TIMEOUT_S, lease_s / _LEASE_PARTS))


class FreshPool(ConnectionPool):
    """A pool that trusts no idle connection once another one broke: whatever broke it has most likely hit them all.

    Without this, calls after a silent loss would wait out a timeout on one dead connection after another.
    """

    def release(self, connection: Any) -> None:
        """Take a connection back."""
        super().release(connection)
        if not connection.is_connected:
            self.disconnect(inuse_connections=False)


def process_ledger(parameters: dict[str, Any], settings: LedgerSettings, *, quick: bool = False) -> Ledger:
    """The process's ledger client for a server.

    Acks must work after the channel of their delivery is gone, from any thread, and never through a connection
    that a fork has inherited; so clients are kept here, by process id.

    Args:
        parameters: keyword arguments of a redis-py connection pool, as Kombu derives them from its URL.
        settings: times and bounds.
        quick: give up on a reply well within a lease; for small calls that are safe to repeat.
    """
    key = (
        os.getpid(),
        settings,
        quick,
        *(str(parameters.get(k)) for k in ("host", "port", "path", "db", "username")),
    )
    with _lock:
        ledger = _ledgers.get(key)
        if ledger is None:
            wanted = {**parameters, "retry": Retry(NoBackoff(), 0)}
            for name in ("socket_timeout", "socket_connect_timeout"):
                wanted[name] = wanted.get(name) or SOCKET_TIMEOUT_S
                if quick:
                    wanted[name] = min(wanted[name], reply_timeout_s(settings.lease_s))
            wanted.pop("max_connections", None)
            ledger = _ledgers[key] = Ledger(Redis(connection_pool=FreshPool(**wanted)), settings)
        return ledger


def quick_ledger(url: str, settings: LedgerSettings) -> Ledger:
    """A ledger client for what running jobs depend on: it never sleeps, and gives up well within a lease.

    redis-py itself would repeat a call ten times and sleep up to a second between; whoever calls here repeats too,
    and knows when to stop.
    """
    timeout_s = reply_timeout_s(settings.lease_s)
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    if not url.startswith("unix:"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": keepalive_options()}
    pool = FreshPool.from_url(url, retry=Retry(NoBackoff(), 0), **options)
    return Ledger(Redis(connection_pool=pool), settings)
