"""The ledger transport: Kombu's Redis transport with the ledger under its ``ccs.*`` queues.

Use it through Celery's settings, with an ordinary Redis URL:

    app = Celery(broker="redis://127.0.0.1:6379/0")
    app.conf.update(ccs_broker.transport.celery_settings())
"""

from __future__ import annotations

from typing import Any, Final

from kombu import connection as kombu_connection
from kombu.transport import redis as kombu_redis

from ccs_broker import topology
from ccs_broker.transport.channel import Channel
from ccs_broker.transport.claims import CLAIMS, ClaimTable
from ccs_broker.transport.clients import SOCKET_TIMEOUT_S, keepalive_options, quick_ledger, reply_timeout_s
from ccs_broker.transport.keeper import keep
from ccs_broker.transport.message import ATTEMPT_HEADER, RUN_TASK
from ccs_broker.transport.profile import Memory, SlotRules, WorkerProfile

__all__ = [
    "ATTEMPT_HEADER",
    "CLAIMS",
    "NAME",
    "RUN_TASK",
    "Channel",
    "ClaimTable",
    "Memory",
    "SlotRules",
    "Transport",
    "WorkerProfile",
    "celery_settings",
    "quick_ledger",
    "reply_timeout_s",
]

#: What ``broker_transport`` is set to.
NAME: Final = "ccs_broker.transport:Transport"

#: Seconds between checks of connections that wait in the event loop; Kombu's 25 make 51 s of a half-open one.
HEALTH_CHECK_S: Final = 2

# Connections would call themselves by the class path, and tools that look at the scheme (Flower's broker page)
# would not know it. Kombu's own table of aliases is the seam for this.
kombu_connection.resolve_aliases[NAME] = "redis"


class Transport(kombu_redis.Transport):
    """Redis transport whose ``ccs.*`` queues are claimed from the ledger."""

    Channel = Channel
    supports_batch_publish = False

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Only consumers come here: start renewing, taking in and sweeping."""
        super().register_with_event_loop(connection, loop)
        for channel in connection.channels:
            if isinstance(channel, Channel):
                keep(channel.ledger, channel.quick_ledger, channel.ledger_settings)
                return


def _socket_options(timeout_s: float) -> dict[str, Any]:
    """Nothing waits for ever on a server that is frozen, or gone without a word."""
    return {
        # For calls that wait for their reply. The pop of tickets and subscriptions wait in the event loop instead.
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        # For those two: Kombu drops a pop whose reply is overdue by this, and a subscription that misses pings.
        "health_check_interval": HEALTH_CHECK_S,
        "socket_keepalive": True,
        "socket_keepalive_options": keepalive_options(),
    }


def celery_settings(socket_timeout_s: float = SOCKET_TIMEOUT_S) -> dict[str, Any]:
    """The settings a Celery app (worker or producer) needs, each with its reason.

    Args:
        socket_timeout_s: seconds without a reply after which a call gives up; a worker's are less than its lease.
    """
    return {
        "broker_transport": NAME,
        # Lets tools count our tickets: the plain list and band 1, joined by ":".
        "broker_transport_options": {
            "sep": topology.BAND_SEPARATOR,
            "priority_steps": [0, topology.TICKET_BAND],
            **_socket_options(socket_timeout_s),
        },
        # The same for connections of the result backend.
        "redis_socket_timeout": socket_timeout_s,
        "redis_socket_connect_timeout": socket_timeout_s,
        "redis_socket_keepalive": True,
        # JSON only, in both directions.
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        # A job is claimed when a slot is free, and acknowledged when it has ended.
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        # Rate limits hold deliveries back inside a worker; the ledger is where jobs wait.
        "worker_disable_rate_limits": True,
        # Running jobs go on while the connection is away; their outcome is written when it is back.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # A server that turns read-only for a moment is an error of the channel, not the end of the worker.
        "broker_channel_error_retry": True,
        "broker_connection_retry_on_startup": True,
        # However long the server stays away; Celery gives up after a hundred tries.
        "broker_connection_max_retries": None,
        # Slots bound the claims, across reconnects too; a lower count would leave slots idle after one.
        "worker_enable_prefetch_count_reduction": False,
    }
