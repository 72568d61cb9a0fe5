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
from ccs_broker.settings import LedgerSettings
from ccs_broker.transport.channel import Channel
from ccs_broker.transport.claims import CLAIMS, ClaimTable, WorkerProfile
from ccs_broker.transport.keeper import keep
from ccs_broker.transport.message import ATTEMPT_HEADER, RUN_TASK

__all__ = [
    "ATTEMPT_HEADER",
    "CLAIMS",
    "NAME",
    "RUN_TASK",
    "Channel",
    "ClaimTable",
    "Transport",
    "WorkerProfile",
    "celery_settings",
]

#: What ``broker_transport`` is set to.
NAME: Final = "ccs_broker.transport:Transport"

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
                keep(channel.ledger, LedgerSettings(**connection.client.transport_options.get("ledger", {})))
                return


def celery_settings() -> dict[str, Any]:
    """The settings a Celery app (worker or producer) needs, each with its reason."""
    return {
        "broker_transport": NAME,
        # Lets tools count our tickets: the plain list and band 1, joined by ":".
        "broker_transport_options": {
            "sep": topology.BAND_SEPARATOR,
            "priority_steps": [0, topology.TICKET_BAND],
        },
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
    }
