"""Celery's result backend with chords that end: what one worker leaves undone behind a chord's last part, another does.

Whoever reports the last part takes a claim on the chord, and sends its body under that. Stock Celery takes a part whose
chord is claimed for done: if the worker that holds the claim dies, nobody sends the body. It also gives a body up when
the server is away for a second. A body sent twice is one job here, since its id is fixed beforehand.
"""

from __future__ import annotations

import logging
import sys
import threading
from functools import cached_property
from typing import Any, Final

from celery.backends.redis import CHORD_CLEANUP_LUA, RedisBackend
from kombu.exceptions import OperationalError
from redis import StrictRedis
from redis.exceptions import ConnectionError, RedisError

from ccs_broker.ledger.faults import is_transient
from ccs_workers.publish.patience import GIVE_UP_AFTER_S, LONGEST_PAUSE_S, OUTAGE, Patience

__all__ = ["PATIENT_PUBLISHING", "ChordBackend", "backend_url"]

logger = logging.getLogger(__name__)

#: How a worker sends what follows a job: for as long as it waits for the server with anything else.
PATIENT_PUBLISHING: Final = {
    "max_retries": int(GIVE_UP_AFTER_S / LONGEST_PAUSE_S),
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": LONGEST_PAUSE_S,
    # A server that is full, read-only or loading answers with errors that Celery takes for final.
    "retry_errors": (RedisError, OSError),
}
_DONE: Final = b"done"
#: Says of this thread which chord it reports a part of, and that it was interrupted in the join: Celery would now clear
#: the chord away.
_reporting = threading.local()
#: Seconds for which it is known of a chord that it has failed, as it is of one whose body was sent.
_DONE_S: Final = 300


def _check_interruption() -> None:
    if getattr(_reporting, "interrupted", None) is not None:
        raise ConnectionError("a chord's join was interrupted; it is to be repeated")


class ChordClient(StrictRedis):
    """Clears no chord away whose join was interrupted by an outage."""

    def delete(self, *names: Any) -> Any:
        """Delete keys, unless they are needed again.

        Raises:
            ConnectionError: a join was interrupted in this thread.
        """
        _check_interruption()
        return super().delete(*names)


def backend_url(url: str) -> str:
    """The setting that makes a worker report to a server through this backend."""
    return f"{__name__}:ChordBackend+{url}" if url.startswith("redis") else url


class ChordBackend(RedisBackend):
    """Returns from a chord's part only when nothing is left to be done that this part made possible."""

    def on_chord_part_return(self, request: Any, state: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        """Count a part; send the body with the last one. Repeated until it is known to have been done."""
        patience = Patience()
        _reporting.group = request.group
        while True:
            _reporting.interrupted = None
            try:
                super().on_chord_part_return(request, state, result, *args, **kwargs)
                if not request.group or not self._is_claimed(request.group):
                    return
                # Somebody else's claim is waited for: that is no outage.
                OUTAGE.over()
            except (RedisError, OSError) as error:
                if not is_transient(error):
                    raise
            finally:
                _reporting.interrupted = None
            if not patience.wait():
                # What follows the part isn't marked as done: another worker does it.
                raise TimeoutError("a chord's claim stayed with somebody else, or the server away")

    def chord_error_from_stack(self, callback: Any, exc: Any = None) -> Any:
        """Fail a chord, but not for an outage.

        Raises:
            ConnectionError: the server was away for a moment; the chord is as it was.
        """
        cause = sys.exc_info()[1]
        if cause is not None and (isinstance(cause, OperationalError) or is_transient(cause)):
            _reporting.interrupted = cause
            _check_interruption()
        told = super().chord_error_from_stack(callback, exc)
        if group := getattr(_reporting, "group", None):
            # Celery leaves the claim to run out; the parts would wait for that in their slots.
            self.client.set(self.get_key_for_group(group, ".c"), _DONE, ex=_DONE_S)
        return told

    @property
    def _chord_cleanup_script(self) -> Any:
        """The script that clears a chord away after its body was sent."""
        _check_interruption()
        return self._clean_up

    @cached_property
    def _clean_up(self) -> Any:
        return self.client.register_script(CHORD_CLEANUP_LUA)

    def _get_client(self) -> type[StrictRedis]:
        return ChordClient

    def _is_claimed(self, group: str) -> bool:
        """Whether somebody, who may be dead, is about to send the body."""
        claim = self.client.get(self.get_key_for_group(group, ".c"))
        return claim is not None and claim != _DONE

    def _chord_publish_claim_expires(self, initial_expires: int, callback: Any) -> int:
        """Not prolonged by the patience with which a body is sent: the next one to claim must not wait for that."""
        return initial_expires
