"""Stock Celery under chaos: late ack, prefetch 1, and a task that marks its beginning and its end."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from celery import Celery, signals
from redis import Redis

URL: Final = os.environ.get("CCS_REDIS_URL", "redis://127.0.0.1:6379/0")
VISIBILITY_S: Final = 30
#: Hashes of marks by task number.
BEGUN: Final = "stock:begun"
ENDED: Final = "stock:ended"
READY: Final = "stock:ready:"

app = Celery("chaos_stock", broker=URL, set_as_current=False)
app.conf.update(
    task_default_queue="stock",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_pool="threads",
    worker_concurrency=int(os.environ.get("CCS_BENCH_SLOTS", "16")),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": VISIBILITY_S},
)
_redis = Redis.from_url(URL, socket_timeout=5.0)


@app.task(name="stock.work", max_retries=None)  # type: ignore[untyped-decorator]
def work(number: int, seconds: float) -> None:
    """Mark the beginning, take the time, mark the end."""
    _mark(BEGUN, number)
    time.sleep(seconds)
    _mark(ENDED, number)


def _mark(name: str, number: int) -> None:
    """Count once, however long the server stays away: a task that fails by its mark would be no measure."""
    for _ in range(600):
        try:
            _redis.hincrby(name, str(number), 1)
        except OSError:
            time.sleep(0.1)
        else:
            return


@signals.worker_ready.connect(weak=False)  # type: ignore[untyped-decorator]
def _ready(sender: Any, **_: Any) -> None:
    _redis.set(READY + sender.hostname, "1", ex=3600)
