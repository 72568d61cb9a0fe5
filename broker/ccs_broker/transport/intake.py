"""Intake: what plain Celery producers pushed onto the queues' lists is moved into the ledger, message by message.

Each message is looked at where it lies, checked, and then taken off its list and published in one script: it
can't be lost in between, and of two workers that look at the same message only one takes it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from ccs_broker import topology
from ccs_broker.errors import InvalidInputError
from ccs_broker.ledger import Entry, PublishStatus
from ccs_broker.ledger.refusals import overload_error
from ccs_broker.transport.message import (
    MalformedMessageError,
    check_body,
    dead_letter,
    entry_of,
    parse_message,
    refused_entry,
    waited_for,
)

if TYPE_CHECKING:
    from ccs_broker.errors import CcsError
    from ccs_broker.ledger import Ledger
    from ccs_broker.settings import LedgerSettings

logger = logging.getLogger(__name__)

#: Messages taken from one list in one round, so that sweeping and the other lists get their turn.
BATCH: Final = 200


class Intake:
    """Moves foreign messages into the ledger."""

    def __init__(self, ledger: Ledger, settings: LedgerSettings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._policy = settings.scheduling
        self._lists = [
            (queue, name) for queue in topology.QUEUES for name in topology.foreign_lists_of(queue)
        ]

    def run(self) -> int:
        """Take in what lies there now (at most a batch per list); returns how many messages."""
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            for _, name in self._lists:
                pipe.llen(name)
            lengths = pipe.execute()
        return sum(
            self._take(queue, name)
            for (queue, name), length in zip(self._lists, lengths, strict=True)
            if length
        )

    def _take(self, queue: str, name: str) -> int:
        # Producers push on the left, so the oldest is on the right.
        items = cast("list[bytes]", self._ledger.redis.lrange(name, -BATCH, -1))
        for taken, item in enumerate(reversed(items)):
            if not self._take_one(queue, name, item):
                # The queue is full: the messages stay where they lie until it isn't.
                return taken
        return len(items)

    def _take_one(self, queue: str, name: str, item: bytes) -> bool:
        """Take one message in, or bury it; False if the queue takes no more."""
        try:
            message = parse_message(item)
            check_body(message)
            now = self._now()
        except MalformedMessageError as error:
            self._bury(queue, name, item, error)
            return True
        try:
            entry, blobs = entry_of(message, queue, now, policy=self._policy)
        except MalformedMessageError as error:
            self._bury(queue, name, item, error)
            return True
        except InvalidInputError as error:
            entry, blobs = refused_entry(message, queue, error, policy=self._policy), {}
        self._ledger.store_blobs(blobs)
        return self._publish(entry, message_queue=(queue, name), item=item, message=message)

    def _publish(
        self, entry: Entry, *, message_queue: tuple[str, str], item: bytes, message: dict[str, object]
    ) -> bool:
        queue, name = message_queue
        published = self._ledger.publish(_from_list(entry, name, item))
        error: CcsError | None = None
        if published.status is PublishStatus.NO_BLOB:
            error = InvalidInputError("a medium isn't in the blob store")
        elif published.status is PublishStatus.NO_MODEL:
            error = InvalidInputError(f"no worker serves the model {entry.model!r}")
        elif published.status is PublishStatus.UNREACHABLE:
            error = overload_error(entry, published)
        if error is not None:
            refused = refused_entry(message, queue, error, policy=self._policy)
            published = self._ledger.publish(_from_list(refused, name, item))
        return published.status is not PublishStatus.FULL

    def _bury(self, queue: str, name: str, item: bytes, error: MalformedMessageError) -> None:
        letter = dead_letter(queue, error.message, item, self._settings.dead_letter_bytes)
        reason = f"the message can't be read: {error.message}"
        if self._ledger.dead(letter, source=name, raw_message=item, task_id=waited_for(item), reason=reason):
            logger.error("a message on %s was put among the dead letters: %s", queue, error.message)

    def _now(self) -> datetime:
        """The broker's clock: a producer's times can only be compared with that."""
        seconds, micros = self._ledger.redis.time()
        return datetime.fromtimestamp(seconds + micros / 1e6, UTC)


def _from_list(entry: Entry, name: str, item: bytes) -> Entry:
    return replace(entry, source=name, raw=item)
