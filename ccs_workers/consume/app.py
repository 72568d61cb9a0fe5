"""Builds the Celery app of a worker: settings, the one task, and the step that loads engines before consuming."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps, signals
from celery.concurrency import get_implementation
from celery.concurrency.thread import TaskPool as ThreadPool
from kombu import Queue
from redis import Redis

from ccs_broker import topology
from ccs_broker.errors import CcsError
from ccs_broker.transport import (
    ATTEMPT_HEADER,
    CLAIMS,
    RUN_TASK,
    celery_settings,
    quick_ledger,
    reply_timeout_s,
)
from ccs_workers.consume.chords import PATIENT_PUBLISHING, backend_url
from ccs_workers.consume.revoking import answer_revokes
from ccs_workers.consume.runtime import Runtime, serving
from ccs_workers.consume.server_check import require_no_eviction
from ccs_workers.consume.task import ContainedTask, RunnerSlot, register_run

if TYPE_CHECKING:
    from dataclasses import Field

    from ccs_workers.settings import WorkerSettings

logger = logging.getLogger(__name__)


def build_app(settings: WorkerSettings) -> Celery:
    """The app for workers, Flower and ``celery inspect``; nothing connects or loads until it is used.

    Raises:
        ConfigurationError: the model file is faulty.
    """
    app = Celery(
        "ccs_workers",
        broker=settings.url,
        backend=backend_url(settings.url),
        task_cls=ContainedTask,
        set_as_current=False,
    )
    common = celery_settings(reply_timeout_s(settings.ledger.lease_s))
    app.conf.update(common)
    app.conf.update(
        broker_transport_options={
            **common["broker_transport_options"],
            "ledger": {name: getattr(settings.ledger, name) for name in _fields(settings)},
        },
        task_queues=[Queue(queue, routing_key=queue) for queue in _queues(settings)],
        task_default_queue=topology.QUEUES[0],
        task_routes={RUN_TASK: {"queue": topology.QUEUES[0]}},
        worker_pool="threads",
        worker_consumer="ccs_workers.consume.consumer:Consumer",
        worker_concurrency=settings.slots,
        # Flower and `celery events` live on these; they carry ids and times, never arguments of ours.
        worker_send_task_events=True,
        task_send_sent_event=False,
        worker_hijack_root_logger=False,
        task_publish_retry_policy=PATIENT_PUBLISHING,
        result_expires=settings.ledger.job_ttl_s,
    )
    slot = RunnerSlot()
    register_run(app, slot)
    app.steps["worker"].add(_engines_step(settings, slot))
    signals.worker_init.connect(_refuse_other_pools, weak=False, dispatch_uid="ccs-pool")
    return app


def _fields(settings: WorkerSettings) -> tuple[str, ...]:
    fields: dict[str, Field[Any]] = type(settings.ledger).__dataclass_fields__
    return tuple(fields)


def _queues(settings: WorkerSettings) -> tuple[str, ...]:
    if settings.model_file is None:
        return topology.QUEUES
    modalities = serving(settings).modalities
    return tuple(topology.queue_of(modality) for modality in modalities)


def _engines_step(settings: WorkerSettings, slot: RunnerSlot) -> type[bootsteps.StartStopStep]:
    """A step of Celery's worker between its pool and its consumer: jobs are claimed only when engines are there."""

    class Engines(bootsteps.StartStopStep):
        requires = ("celery.worker.components:Pool",)

        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            self.runtime: Runtime | None = None

        def start(self, worker: Any) -> None:
            ledger = quick_ledger(settings.url, settings.ledger)
            try:
                # One that is only just starting is asked again, as redis-py does by itself.
                with Redis.from_url(settings.url, socket_timeout=5.0, socket_connect_timeout=5.0) as redis:
                    require_no_eviction(redis, allowed=settings.allow_eviction)
                self.runtime = Runtime(settings, ledger, worker.hostname)
                self.runtime.load()
            except CcsError as error:
                logger.error("the worker can't start: %s", error)
                if self.runtime is not None:
                    self.runtime.close()
                raise SystemExit(1) from error
            slot.runner = self.runtime.runner
            answer_revokes(ledger)
            follow_tasks()
            self._drain_on_shutdown(self.runtime)
            self.runtime.open()

        @staticmethod
        def _drain_on_shutdown(runtime: Runtime) -> None:
            """The signal comes at once, in the main thread; Celery's steps are stopped later, one by one."""

            def shut_down(**_: Any) -> None:
                runtime.drain()

            signals.worker_shutting_down.connect(shut_down, weak=False, dispatch_uid="ccs-drain")

        def stop(self, worker: Any) -> None:
            if self.runtime is not None:
                self.runtime.close()
                self.runtime = None

        terminate = stop

    return Engines


def _refuse_other_pools(sender: Any, **_: Any) -> None:
    """Only threads can wait for engines: a fork would copy locks and sockets, green threads would block."""
    pool = get_implementation(sender.pool_cls)
    if not issubclass(pool, ThreadPool):
        name = pool.__module__.rpartition(".")[2]
        reason = "engines are processes of their own, and their slots are threads"
        sys.stderr.write(f"error: the pool {name!r} can't run here, use --pool=threads: {reason}\n")
        raise SystemExit(2)


def follow_tasks() -> None:
    """Tell the claim table when a thread takes up a delivery and when it is through, whatever the task."""

    def begin(task_id: str, task: Any, **_: Any) -> None:
        CLAIMS.begin((task_id, int(task.request.get(ATTEMPT_HEADER) or 0)))

    def end(task_id: str, task: Any, retval: Any = None, **_: Any) -> None:
        CLAIMS.end((task_id, int(task.request.get(ATTEMPT_HEADER) or 0)))
        if isinstance(retval, BaseException):
            # Celery has told and logged it. Its frame holds the error, whose traceback and those it came from hold the
            # frame, with the request and its claim: a cycle for each job that failed, until all there is is collected.
            retval.__traceback__ = retval.__cause__ = retval.__context__ = None

    signals.task_prerun.connect(begin, weak=False, dispatch_uid="ccs-begin")
    signals.task_postrun.connect(end, weak=False, dispatch_uid="ccs-end")
