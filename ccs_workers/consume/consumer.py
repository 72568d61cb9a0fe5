"""Celery's consumer, but silent about the contents of messages it can't use: stock logs them whole."""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import NotRegistered
from celery.worker.consumer import Consumer as CeleryConsumer

logger = logging.getLogger(__name__)


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


class Consumer(CeleryConsumer):
    """Says which message it refused and why, by id and name alone."""

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
