"""Two Celery apps that differ in their transport alone, with a task that does nothing."""

from __future__ import annotations

import os
import time
from typing import Final

from celery import Celery
from redis import Redis

from ccs_broker.transport import celery_settings

URL: Final = os.environ.get("CCS_REDIS_URL", "redis://127.0.0.1:6379/0")
KIND: Final = os.environ.get("CCS_BENCH_TRANSPORT", "ledger")
#: Results that can be waited for, as those of a submitted job can.
RESULTS: Final = os.environ.get("CCS_BENCH_RESULTS") == "1"

_started: list[float] = []
_count = [0]


def make_app(kind: str) -> Celery:
    """``ledger`` or ``stock``: the same delivery rules, another transport."""
    app = Celery("noop", broker=URL, backend=URL if RESULTS else None, set_as_current=False)
    app.conf.update(celery_settings())
    if kind == "stock":
        app.conf.update(broker_transport=None, broker_transport_options={})
    app.conf.update(
        task_default_queue="ccs.text" if kind == "ledger" else "stock",
        worker_pool="threads",
        worker_concurrency=8,
        task_ignore_result=not RESULTS,
        worker_hijack_root_logger=False,
    )
    return app


app = make_app(KIND)


@app.task(name="bench.noop", shared=False)
def noop(total: int) -> None:
    """Do nothing, and tell how long ``total`` of these took from the first to the last."""
    if not _started:
        _started.append(time.perf_counter())
    _count[0] += 1
    if _count[0] == total:
        elapsed = time.perf_counter() - _started[0]
        with Redis.from_url(URL) as client:
            client.set("bench:elapsed", elapsed, ex=60)
