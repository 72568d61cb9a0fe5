"""Side threads of a consuming process: leases are renewed, foreign messages taken in, the ledger swept, cancels heard.

They are threads and not timers of Celery's loop, because that loop stops during a warm shutdown and can be held
up by anything a worker does, while leases must not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from ccs_broker import topology
from ccs_broker.ledger.faults import fault_word, is_transient
from ccs_broker.transport.claims import CLAIMS
from ccs_broker.transport.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis
    from redis.client import PubSub

    from ccs_broker.ledger import Ledger
    from ccs_broker.settings import LedgerSettings

logger = logging.getLogger(__name__)

#: Seconds between looks at the lists of foreign producers.
INTAKE_EVERY_S: Final = 0.1
#: Longest time between two renewals; a cancelled job that shows no progress learns it at the next one.
RENEW_AT_MOST_S: Final = 1.0
#: Longest wait for a word on the control channel, and the pause after it was lost.
LISTEN_S: Final = 1.0
PAUSE_S: Final = 0.5
#: Longest time until a loop tries again after the server couldn't be reached.
RETRY_S: Final = 0.2


class Loop:
    """A daemon thread that calls a function again and again and survives a server that is away."""

    def __init__(self, name: str, every_s: float, step: Callable[[], None]) -> None:
        self._every_s = every_s
        self._step = step
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        away = False
        while not self._stop.wait(min(self._every_s, RETRY_S) if away else self._every_s):
            try:
                self._step()
                if away:
                    logger.info("%s: the server is back", self._thread.name)
                away = False
            except (RedisError, OSError) as error:
                if not away:
                    what = "is away" if is_transient(error) else "refuses"
                    logger.warning(
                        "%s: the server %s (%s); trying on", self._thread.name, what, fault_word(error)
                    )
                away = True
            except Exception:  # loop edge: a fault in one round must not end renewals for good
                logger.exception("%s: a round failed", self._thread.name)

    def stop(self) -> None:
        """End the thread; returns when it has ended, or after a second."""
        self._stop.set()
        self._thread.join(timeout=1.0)


class Ear:
    """Hears of cancelled jobs as they are cancelled; what it misses, the next append or renewal tells."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._pubsub: PubSub | None = None

    def listen(self) -> None:
        """Wait for one word, a while at most."""
        try:
            if self._pubsub is None:
                self._pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
                self._pubsub.subscribe(topology.CONTROL)
            message = self._pubsub.get_message(timeout=LISTEN_S)
        except (RedisError, OSError):
            if self._pubsub is not None:
                self._pubsub.close()
            self._pubsub = None
            time.sleep(PAUSE_S)
            raise
        if message is not None and isinstance(message["data"], bytes):
            with contextlib.suppress(ValueError):
                CLAIMS.tell([topology.split_run_entry(message["data"].decode())], ["cancelling"])


class Keeper:
    """The loops of one consuming process."""

    def __init__(self, ledger: Ledger, renewing: Ledger, settings: LedgerSettings) -> None:
        self._ledger = ledger
        self._renewing = renewing
        self._intake = Intake(ledger, settings)
        self._rounds = 0
        self._sweep_each = max(1, round(settings.sweep_s / INTAKE_EVERY_S))
        self._loops = (
            Loop("ccs-leases", min(settings.lease_s / 3, RENEW_AT_MOST_S), self._renew),
            Loop("ccs-sweep", INTAKE_EVERY_S, self._tidy),
            Loop("ccs-control", 0.0, Ear(ledger.redis).listen),
        )

    def _renew(self) -> None:
        keys = CLAIMS.renewable()
        if keys:
            CLAIMS.tell(keys, self._renewing.renew(keys))
            CLAIMS.pay(self._renewing)

    def _tidy(self) -> None:
        self._intake.run()
        if self._rounds % self._sweep_each == 0:
            report = self._ledger.sweep()
            if report.requeued or report.lost or report.expired:
                logger.info(
                    "sweep: %d requeued, %d lost, %d expired", report.requeued, report.lost, report.expired
                )
        self._rounds += 1

    def stop(self) -> None:
        """End the loops."""
        for loop in self._loops:
            loop.stop()


_keepers: dict[int, Keeper] = {}
_lock = threading.Lock()


def keep(ledger: Ledger, renewing: Ledger, settings: LedgerSettings) -> Keeper:
    """Start the side threads for a ledger client, once per process.

    Args:
        ledger: the channel's ledger.
        renewing: of the same server, but gives up on a reply well within a lease.
        settings: times and bounds.
    """
    with _lock:
        keeper = _keepers.get(id(ledger))
        if keeper is None:
            keeper = _keepers[id(ledger)] = Keeper(ledger, renewing, settings)
        return keeper
