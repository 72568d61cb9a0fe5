"""Kombu's channel and acknowledgements, with the ledger in place of lists and the unacked hash."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis.exceptions import RedisError, ResponseError

from ccs_broker import topology
from ccs_broker.errors import (
    ConflictError,
    InvalidInputError,
    NoSuitableWorkerError,
)
from ccs_broker.ledger import Ledger, NoClaim, NotClaimed, PublishStatus
from ccs_broker.ledger.calls import text
from ccs_broker.ledger.faults import is_transient
from ccs_broker.ledger.refusals import overload_error
from ccs_broker.settings import LedgerSettings
from ccs_broker.settings import ledger_settings as shared_settings
from ccs_broker.transport.claims import CLAIMS, Key
from ccs_broker.transport.clients import FreshPool, process_ledger
from ccs_broker.transport.message import (
    check_message,
    dead_letter,
    delivery_of,
    entry_of,
)
from ccs_broker.transport.mutes import Mutes
from ccs_broker.transport.steps import publish_step, step_call
from ccs_broker.transport.strays import hand_back_strays

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

_STOCK_SEPARATOR = "\x06\x16"


def _key_of(tag: object) -> Key | None:
    """Job id and attempt of a delivery tag of ours; None for any other."""
    if not isinstance(tag, str):
        return None
    try:
        return topology.split_run_entry(tag)
    except ValueError:
        return None


class QoS(kombu_redis.QoS):
    """Acknowledgements go to the ledger; deliveries of other queues keep Kombu's own way."""

    channel: Channel

    def can_consume(self) -> bool:
        """True while a slot is free. Celery wraps this with its own count, which it forgets on a reconnect.

        Channels without a ledger queue, such as that of remote control, are read however busy the worker is.
        """
        claims = any(topology.is_ledger_queue(queue) for queue in self.channel.active_queues)
        return (not claims or CLAIMS.has_slot()) and bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        """Nothing to store: the claim script has."""
        if _key_of(delivery_tag) is None:
            super().append(message, delivery_tag)
        else:
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Celery is done with a delivery, well or badly."""
        key = _key_of(delivery_tag)
        if key is None:
            super().ack(delivery_tag)
            return
        virtual.QoS.ack(self, delivery_tag)
        CLAIMS.settle(key, self.channel.ledger)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Hand a delivery back, or drop it."""
        key = _key_of(delivery_tag)
        if key is None:
            super().reject(delivery_tag, requeue=requeue)
        elif requeue:
            virtual.QoS.ack(self, delivery_tag)
            CLAIMS.settle(key, self.channel.ledger, "release")
        else:
            self.ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """The channel goes away: claims that no thread has begun go back, running ones go on."""
        keys = [key for tag in self._delivered if (key := _key_of(tag)) is not None]
        for tag in [tag for tag in self._delivered if _key_of(tag) is not None]:
            self._delivered.pop(tag)
        for key in CLAIMS.take_unstarted(keys):
            CLAIMS.settle(key, self.channel.ledger, "release")
        if self._delivered:
            # Of queues that aren't ours. Without any, Kombu would still connect, which a closed channel can't.
            super().restore_unacked(client)

    def restore_visible(self, *_args: Any, **_kwargs: Any) -> None:
        """Leases do this; see the housekeeper."""


class Channel(kombu_redis.Channel):
    """A channel whose ``ccs.*`` queues live in the ledger."""

    QoS = QoS
    #: Flower reads these two from the options to count tickets; the channel itself keeps Kombu's stock names
    #: for all other queues, so that clients without our transport can talk to the worker.
    from_transport_options = tuple(
        option
        for option in kombu_redis.Channel.from_transport_options
        if option not in {"sep", "priority_steps"}
    )
    #: A publish is one script already.
    supports_batch_publish = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._mutes = Mutes(CLAIMS)
        super().__init__(*args, **kwargs)

    @property
    def ledger(self) -> Ledger:
        """The process's ledger for this channel's server; works after the channel is closed."""
        cached: Ledger | None = self.__dict__.get("_ledger")
        if cached is None:
            cached = self.__dict__["_ledger"] = process_ledger(self._connparams(), self.ledger_settings)
        return cached

    @property
    def quick_ledger(self) -> Ledger:
        """The same for small calls that are safe to repeat: gives up on a reply well within a lease."""
        return process_ledger(self._connparams(), self.ledger_settings, quick=True)

    @property
    def ledger_settings(self) -> LedgerSettings:
        """Times and bounds of the ledger, and the policy."""
        options = self.connection.client.transport_options.get("ledger")
        # Workers pass theirs on whole; a plain producer has the environment.
        return shared_settings() if options is None else LedgerSettings(**options)

    def _get_pool(self, asynchronous: bool = False) -> Any:
        """Kombu's pool, but one whose idle connections aren't waited out one by one after a silent loss."""
        super()._get_pool(asynchronous=asynchronous)
        return FreshPool(**self._connparams(asynchronous=asynchronous))

    def maybe_refresh_binding_expiry(self) -> None:
        """Tried again in a second anyway; Kombu logs a traceback for each refusal of a server that is full."""
        try:
            super().maybe_refresh_binding_expiry()
        except ResponseError as error:
            if not is_transient(error):
                raise

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if not topology.is_ledger_queue(queue) or "task" not in (message.get("headers") or {}):
            super()._put(queue, message, **kwargs)
            return
        message, policy = check_message(message), self.ledger.calls.policy
        if (call := step_call(message)) is not None:
            publish_step(self.ledger, queue, message, call)
            return
        entry, blobs = entry_of(message, queue, datetime.now(UTC), policy=policy)
        self.ledger.store_blobs(blobs)
        published = self.ledger.publish(entry)
        if published.status is PublishStatus.NO_MODEL:
            raise NoSuitableWorkerError(f"no worker of {queue} serves the model {entry.model!r}")
        if published.status is PublishStatus.NO_BLOB:
            raise InvalidInputError(f"medium {published.id} isn't in the blob store")
        if published.status is PublishStatus.CONFLICT:
            raise ConflictError("the idempotency key was used with another body")
        if (error := overload_error(entry, published)) is not None:
            raise error

    def _get(self, queue: str) -> Any:
        if not topology.is_ledger_queue(queue):
            return super()._get(queue)
        if self.client.rpop(topology.tickets_of(queue)) is None:
            raise Empty
        claimed = self._claim(queue)
        if claimed is None:
            raise Empty
        return claimed[1]

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        keys = list(self._keys_to_pop(queues))
        if not keys:
            return
        if CLAIMS.doubts:
            hand_back_strays(self.ledger, CLAIMS)
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self.client.connection.send_command(
            "BRPOP", *keys, (self.brpop_timeout if timeout is None else timeout) or 0
        )

    def _keys_to_pop(self, queues: Sequence[str]) -> Iterable[str]:
        open_ = [q for q in queues if topology.is_ledger_queue(q) and CLAIMS.has_room(q)]
        if muted := [queue for queue in open_ if self._mutes.muted(queue)]:
            yield from self._mutes.keys(muted)
        yield from (topology.tickets_of(queue) for queue in open_ if queue not in muted)
        for priority in self.priority_steps:
            for queue in queues:
                if not topology.is_ledger_queue(queue):
                    yield self._q_for_pri(queue, priority)

    def _brpop_read(self, **options: Any) -> bool:
        try:
            try:
                reply = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            if not reply:
                raise Empty
            key, item = reply
            self._received(key.decode(), item)
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _received(self, key: str, item: bytes) -> None:
        if key == self._mutes.wake:
            self._mutes.lift()
            return
        if key.startswith(topology.NUDGE):
            self._on_nudge(key.removeprefix(topology.NUDGE), item)
            return
        queue = key.removesuffix(f"{topology.BAND_SEPARATOR}{topology.TICKET_BAND}")
        if topology.is_ledger_queue(queue):
            self._on_ticket(queue, item)
            return
        queue = key.split(_STOCK_SEPARATOR, 1)[0]
        self._queue_cycle.rotate(queue)
        try:
            message = json.loads(item)
        except ValueError:
            self._bury(queue, "not JSON", item)
            return
        self._hand_over(message, queue, item)

    def _on_ticket(self, queue: str, item: bytes) -> None:
        if item != topology.TICKET:
            self._bury(queue, "not a ticket", item)
        elif not self._may_claim(queue):
            # The reply of the last BRPOP can arrive while consuming ends: put the ticket back.
            self.ledger.redis.rpush(topology.tickets_of(queue), topology.TICKET)
        elif (claimed := self._claim(queue)) is not None:
            self._hand_over(claimed[1], claimed[0], b"")

    def _on_nudge(self, queue: str, item: bytes) -> None:
        claimed = self._claim(queue, nudged=True) if self._may_claim(queue) else None
        if claimed is None:
            self._mutes.pass_on(queue, item, self.ledger)
        else:
            self._hand_over(claimed[1], claimed[0], b"")

    def _may_claim(self, queue: str) -> bool:
        return not self._closing and CLAIMS.has_slot() and queue in self.connection._callbacks

    def _claim(self, queue: str, *, nudged: bool = False) -> tuple[str, dict[str, Any]] | None:
        """Claim the best job over all queues with room; its queue and Celery message."""
        growths = CLAIMS.growths
        queues = tuple(
            q
            for q in self.active_queues
            if topology.is_ledger_queue(q) and CLAIMS.has_room(q) and (q == queue or not self._mutes.muted(q))
        )
        with CLAIMS.offering():
            try:
                claim = self.ledger.claim(CLAIMS.wish(queue, queues, nudged=nudged))
            except (RedisError, OSError):
                CLAIMS.doubt()
                raise
            if not isinstance(claim, NotClaimed):
                CLAIMS.add(claim)
        CLAIMS.answered(claim.blocked if isinstance(claim, NotClaimed) else None)
        if isinstance(claim, NotClaimed):
            if claim.reason is NoClaim.NO_ROOM:
                self._mutes.mute(queue, self.ledger, growths)
            return None
        try:
            message = delivery_of(claim)
        except (ValueError, KeyError, TypeError):
            # Stored by us and still unreadable: the ack without an outcome quarantines it.
            logger.error("the stored message of job %s can't be read; quarantined", claim.id)
            CLAIMS.settle((claim.id, claim.attempt), self.ledger)
            return None
        return claim.queue, message

    def _hand_over(self, message: Any, queue: str, item: bytes) -> None:
        try:
            self.connection._deliver(message, queue)
        except self.connection_errors as error:
            # KeyError and friends count as connection errors in Kombu; only real ones may restart the consumer.
            if isinstance(error, OSError | RedisError):
                raise
            self._undeliverable(message, queue, item)
        except Exception:  # noqa: BLE001 - loop edge: a delivery Celery can't digest must not end the worker
            self._undeliverable(message, queue, item)

    def _undeliverable(self, message: Any, queue: str, item: bytes) -> None:
        properties = message.get("properties") if isinstance(message, dict) else None
        key = _key_of(properties.get("delivery_tag")) if isinstance(properties, dict) else None
        logger.error("a message on %s can't be delivered", queue)
        if key is None:
            self._bury(queue, "undeliverable", item)
        else:
            CLAIMS.settle(key, self.ledger)

    def _bury(self, queue: str, reason: str, item: bytes) -> None:
        logger.error("a message on %s was put among the dead letters: %s", queue, reason)
        self.ledger.dead(dead_letter(queue, reason, item, self.ledger_settings.dead_letter_bytes))

    def _size(self, queue: str) -> int:
        if not topology.is_ledger_queue(queue):
            return int(super()._size(queue))
        return int(self.ledger.redis.zcard(topology.WAITING + queue))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return topology.is_ledger_queue(queue) or bool(super()._has_queue(queue, **kwargs))

    def _purge(self, queue: str) -> int:
        if not topology.is_ledger_queue(queue):
            return int(super()._purge(queue))
        waiting = self.ledger.redis.zrange(topology.WAITING + queue, 0, -1)
        return sum(self.ledger.cancel(text(job_id), "waiting") == "cancelled" for job_id in waiting)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if not topology.is_ledger_queue(queue):
            super()._delete(queue, *args, **kwargs)
