"""Queues that a worker doesn't listen to for a moment, and what calls it back before that is over.

A queue is muted where it offered nothing that fits, so that its ticket isn't popped again and again. Meanwhile its
nudges are listened to instead of its tickets: publishing an urgent job leaves one. And once the worker's room has grown
(a job of its own has ended, a model has been loaded), nothing is muted any more.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from ccs_broker import topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccs_broker.ledger import Ledger
    from ccs_broker.transport.claims import ClaimTable

#: Seconds a queue isn't listened to after it offered nothing this worker could take.
MUTE_S: Final = 1.0
#: Seconds for which nudges are left to others after one came to nothing.
_DEAF_S: Final = 0.1
#: Times that a nudge is passed on, so that one nobody can follow ends.
_MOST_HOPS: Final = 8
#: Milliseconds that nudges and calls stay.
_TTL_MS: Final = 2000


class Mutes:
    """The mutes of one consumer; for the thread that consumes."""

    def __init__(self, claims: ClaimTable) -> None:
        self._claims = claims
        self._until: dict[str, float] = {}
        self._deaf_until: dict[str, float] = {}
        #: List on which the worker's own threads say that its room has grown.
        self.wake = topology.WAKE + secrets.token_hex(8)

    def muted(self, queue: str) -> bool:
        """True while the queue's tickets are left to others."""
        return self._until.get(queue, 0.0) > time.monotonic()

    def keys(self, queues: Iterable[str]) -> list[str]:
        """What to listen to in place of the tickets of these queues, all of them muted."""
        now = time.monotonic()
        nudges = [topology.NUDGE + queue for queue in queues if self._deaf_until.get(queue, 0.0) <= now]
        return [self.wake, *nudges]

    def mute(self, queue: str, ledger: Ledger, growths: int) -> None:
        """Leave the queue's tickets to others for a moment, unless room has grown since it had ``growths`` times."""
        self._until[queue] = time.monotonic() + MUTE_S
        self._claims.at_next_growth(lambda: self._call(ledger))
        if self._claims.growths != growths:
            self.lift()

    def lift(self) -> None:
        """The room has grown: listen to everything."""
        self._until.clear()

    def pass_on(self, queue: str, nudge: bytes, ledger: Ledger) -> None:
        """Nothing here fits what the nudge was for: leave it to another worker, and don't take the next one at once."""
        self._deaf_until[queue] = time.monotonic() + _DEAF_S
        if len(nudge) < len(topology.TICKET) + _MOST_HOPS:
            _push(ledger, topology.NUDGE + queue, nudge + b"+")

    def _call(self, ledger: Ledger) -> None:
        # The mute ends by itself in a second; a server that is away is others' matter.
        with contextlib.suppress(RedisError, OSError):
            _push(ledger, self.wake, b"1")


def _push(ledger: Ledger, key: str, item: bytes) -> None:
    with ledger.redis.pipeline(transaction=False) as pipe:
        pipe.lpush(key, item)
        pipe.pexpire(key, _TTL_MS)
        pipe.execute()
