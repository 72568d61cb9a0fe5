"""Celery's consumer, but silent about the contents of messages it can't use, and quickly back after an outage."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any, Final

from celery.exceptions import CPendingDeprecationWarning, NotRegistered
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.state import maybe_shutdown

from ccs_broker.ledger.faults import fault_word
from ccs_workers.consume.pulse import CONSUMING

logger = logging.getLogger(__name__)

#: Seconds between tries to reach a server that is away: the first pause, what each adds, and the longest. Celery's own
#: grow to 30 and have no setting.
FIRST_PAUSE_S: Final = 0.2
PAUSE_STEP_S: Final = 0.3
LONGEST_PAUSE_S: Final = 2.0
#: Seconds without an error after which an outage is over, and between two lines of the log about one.
CALM_S: Final = 10.0
LOG_EVERY_S: Final = 30.0


class _Request:
    """What the result backend asks of a request that never became a task."""

    def __init__(self, headers: dict[str, Any], name: str, exception: Exception) -> None:
        self.id = headers.get("id")
        self.name = name
        self.chord = None
        self.root_id = headers.get("root_id")
        self.correlation_id = self.id
        self.reply_to = None
        self.errbacks = None
        self.exception = exception


class _Trouble:
    """Paces and logs one outage, whatever number of errors it shows itself in."""

    def __init__(self) -> None:
        self._last = self._logged = -CALM_S - LOG_EVERY_S
        self._began = 0.0
        self._pause_s = 0.0

    def note(self, error: Exception, server: str) -> None:
        """Log an error, unless the outage has been logged just now."""
        word, now = fault_word(error), time.monotonic()
        CONSUMING.end(word)
        if now - self._last > CALM_S:
            self._pause_s, self._began, self._logged = 0.0, now, -LOG_EVERY_S
        self._last = now
        if now - self._logged >= LOG_EVERY_S:
            logger.error("the server %s can't be used (%s); trying on, running jobs go on", server, word)
            self._logged = now

    def pause(self, error: Exception, server: str) -> None:
        """Wait longer after each error of an outage; not at all after its first.

        Raises:
            WorkerShutdown, WorkerTerminate: the worker was told to stop.
        """
        self.note(error, server)
        until = time.monotonic() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s + FIRST_PAUSE_S + PAUSE_STEP_S)
        while (left_s := until - time.monotonic()) > 0:
            maybe_shutdown()
            time.sleep(min(left_s, 0.1))

    def over(self) -> None:
        """Consuming begins (again)."""
        if self._logged >= self._began > 0:
            logger.info("the server is back after %.1f s", time.monotonic() - self._began)
            self._began = 0.0


class Consumer(CeleryConsumer):
    """Says which message it refused and why, by id and name alone, and comes back within two seconds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._trouble = _Trouble()
        super().__init__(*args, **kwargs)

    def ensure_connected(self, conn: Any) -> Any:
        """Wait until the server can be reached."""

        def refused(error: Exception, _pause_s: float) -> None:
            self._trouble.note(error, conn.as_uri())

        connected = conn.ensure_connection(
            refused,
            self.app.conf.broker_connection_max_retries,
            interval_start=FIRST_PAUSE_S,
            interval_step=PAUSE_STEP_S,
            interval_max=LONGEST_PAUSE_S,
            callback=maybe_shutdown,
        )
        self.first_connection_attempt = False
        self.broker_connection_retry_attempt = 0
        return connected

    def on_ready(self) -> None:
        """The loop begins, for the first time or after a reconnect."""
        super().on_ready()
        CONSUMING.begin()
        self._trouble.over()

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """The server went away while the consumer was connecting."""
        self._trouble.pause(exc, self.conninfo.as_uri())

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """The connection broke, or the server refuses for a while what consuming needs."""
        CONSUMING.end(fault_word(exc))
        with warnings.catch_warnings():
            # Celery 5 warns of a new default, at each loss, also where the setting is made.
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)
        self._trouble.pause(exc, self.conninfo.as_uri())

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """A message that isn't a task at all."""
        logger.error("a message that isn't a task was refused")
        message.reject_log_error(logger, self.connection_errors)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """A task that isn't registered here: its producer learns it from the result."""
        name, task_id = message.headers.get("task"), message.headers.get("id")
        logger.error("task %s was refused: no task %r is registered on this worker", task_id, name)
        message.reject_log_error(logger, self.connection_errors)
        error = NotRegistered(name)
        self.app.backend.mark_as_failure(task_id, error, request=_Request(message.headers, name, error))
        if self.event_dispatcher:
            self.event_dispatcher.send("task-failed", uuid=task_id, exception=f"NotRegistered({name!r})")

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """A task whose message can't be read."""
        logger.error("task %s was refused: %s", message.headers.get("id"), type(exc).__name__)
        message.reject_log_error(logger, self.connection_errors)
