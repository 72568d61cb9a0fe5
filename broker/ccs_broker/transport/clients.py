"""Redis clients that outlive a Kombu channel: one per process and server."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ccs_broker.ledger import Ledger

if TYPE_CHECKING:
    from ccs_broker.settings import LedgerSettings

_lock = threading.Lock()
_ledgers: dict[tuple[object, ...], Ledger] = {}
#: Seconds after which a call to a silent server gives up; Kombu sets none.
_SOCKET_TIMEOUT_S = 5.0


def process_ledger(parameters: dict[str, Any], settings: LedgerSettings) -> Ledger:
    """The process's ledger client for a server.

    Acks must work after the channel of their delivery is gone, from any thread, and never through a connection
    that a fork has inherited; so clients are kept here, by process id.

    Args:
        parameters: keyword arguments of a redis-py connection pool, as Kombu derives them from its URL.
        settings: times and bounds.
    """
    key = (
        os.getpid(),
        settings,
        *(str(parameters.get(k)) for k in ("host", "port", "path", "db", "username")),
    )
    with _lock:
        ledger = _ledgers.get(key)
        if ledger is None:
            wanted = {**parameters, "retry": Retry(NoBackoff(), 0)}
            for name in ("socket_timeout", "socket_connect_timeout"):
                wanted[name] = wanted.get(name) or _SOCKET_TIMEOUT_S
            wanted.pop("max_connections", None)
            pool = ConnectionPool(**wanted)
            ledger = _ledgers[key] = Ledger(Redis(connection_pool=pool), settings)
        return ledger
