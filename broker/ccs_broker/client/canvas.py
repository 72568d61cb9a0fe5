"""A plan as Celery's canvas, and its way to the server: chains, groups and chords of ``ccs.run``.

A message of the canvas names its step and nothing of its job, which lies in the pipeline's record.
"""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, chain, group
from celery.backends.redis import RedisBackend
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ccs_broker import topology
from ccs_broker.client.faults import unavailable
from ccs_broker.pipelines.publishing import StepCall
from ccs_broker.pipelines.shape import InSeries, SideBySide, shape_of
from ccs_broker.transport import RUN_TASK, celery_settings

if TYPE_CHECKING:
    from ccs_broker.pipelines.records import Plan
    from ccs_broker.pipelines.shape import Shape
    from ccs_broker.settings import BrokerSettings

__all__ = ["Canvas"]

#: A client tells its caller that the server is away; it doesn't wait for it.
_NO_RETRIES: Final = {"max_retries": 0}


class QuietBackend(RedisBackend):  # type: ignore[misc]
    """Notes how many parts a chord has, and subscribes to no results: the ledger tells what became of a step."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Called when a task was sent whose result might be waited for."""

    def add_pending_result(self, result: Any, weak: bool = False) -> Any:
        """Called for every member of a group."""
        return result

    def remove_pending_result(self, result: Any) -> Any:
        """Called when nobody has a task's handle any more."""
        return result


class Canvas:
    """A Celery app of one client that sends plans; thread-safe."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._app: Celery | None = None

    def send(self, plan: Plan) -> None:
        """Publish the steps that wait for none; each worker goes on from there.

        Raises:
            QueueUnavailableError: the server did not take it.
        """
        canvas = self._of(shape_of({step.name: step.needs for step in plan.steps}), plan)
        try:
            canvas.apply_async(retry=False, retry_policy=_NO_RETRIES)
        except (OperationalError, RedisError, OSError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, RedisError | OSError) else error
            raise unavailable(cause, "the broker", sent=True) from error

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            app, self._app = self._app, None
        if app is not None:
            app.close()

    def _of(self, shape: Shape, plan: Plan) -> Any:
        if isinstance(shape, InSeries):
            return chain(*(self._of(part, plan) for part in shape.parts), app=self._celery())
        if isinstance(shape, SideBySide):
            return group([self._of(part, plan) for part in shape.parts], app=self._celery())
        step = next(one for one in plan.steps if one.name == shape)
        call = StepCall(pipeline=plan.id, name=step.name, takes=step.takes)
        # Immutable: it takes its texts from the ledger, not from what Celery would put before its arguments.
        return self._celery().signature(
            RUN_TASK,
            args=[call.arguments()],
            immutable=True,
            queue=topology.queue_of(step.job.modality),
            task_id=call.id,
            ignore_result=True,
        )

    def _celery(self) -> Celery:
        with self._lock:
            if self._app is None:
                settings = self._settings
                url = settings.url
                backend = f"{__name__}:{QuietBackend.__name__}+{url}" if url.startswith("redis") else url
                app = Celery("ccs", broker=url, backend=backend, set_as_current=False)
                app.conf.update(celery_settings(settings.timeout_s))
                app.conf.broker_transport_options["ledger"] = asdict(settings.ledger)
                app.conf.result_expires = settings.ledger.job_ttl_s
                self._app = app
            return self._app
