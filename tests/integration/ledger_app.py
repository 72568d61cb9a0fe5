"""Celery tasks of a team's own on our queues, for workers and producers of the tests."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from ccs_broker.transport import celery_settings
from ccs_workers.consume.task import ContainedTask

URL = os.environ["CCS_REDIS_URL"]
app = Celery("ledger_app", broker=URL, backend=URL, task_cls=ContainedTask, set_as_current=False)
app.conf.update(celery_settings())
app.conf.update(
    task_default_queue="ccs.text",
    worker_pool="threads",
    broker_connection_retry=True,
    worker_hijack_root_logger=False,
)


def _client() -> redis.Redis:
    return redis.Redis.from_url(URL)


@app.task(name="test.add", shared=False)
def add(left: int, right: int) -> int:
    return left + right


@app.task(name="test.total", shared=False)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="test.mark", shared=False)
def mark(label: str, seconds: float = 0.0) -> str:
    with _client() as client:
        client.rpush("test:started", label)
        client.expire("test:started", 600)
        if seconds:
            time.sleep(seconds)
        client.rpush("test:ended", label)
        client.expire("test:ended", 600)
    return label


@app.task(name="test.raise", shared=False)
def raise_named(name: str) -> None:
    raise {"MemoryError": MemoryError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[name]


@app.task(name="test.flaky", shared=False, bind=True, max_retries=3)
def flaky(self: Any, label: str, failures: int) -> int:
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    mark(label)
    return int(self.request.retries)
