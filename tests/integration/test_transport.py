"""What is native to Celery stays native on the ledger transport: results, canvas, retries, delays, control."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery, chain, chord, group

from ccs_broker.errors import InternalError
from tests.helpers import wait_until
from tests.workers import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_key_leaks")]


@pytest.fixture
def tasks(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The test's task module, its app bound to this test's server."""
    monkeypatch.setenv("CCS_REDIS_URL", redis_url)
    sys.modules.pop("tests.integration.ledger_app", None)
    module = importlib.import_module("tests.integration.ledger_app")
    yield module
    module.app.close()


def start_worker(url: str, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """Celery's own command on the test's app."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.integration.ledger_app", "worker", "-l", "INFO",
             "--without-mingle", "--without-gossip", *options],
            cwd=ROOT, env={**os.environ, "CCS_REDIS_URL": url}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.fixture
def celery_worker(redis_url: str, tmp_path: Path, tasks: ModuleType) -> Iterator[subprocess.Popen[bytes]]:
    """One worker with two slots."""
    process = start_worker(redis_url, tmp_path / "worker.log", "-c", "2")
    yield process
    stop(process)


@pytest.mark.usefixtures("celery_worker")
def test_results_canvas_and_retries(tasks: Any) -> None:
    assert tasks.add.delay(2, 3).get(timeout=30) == 5
    assert chain(tasks.add.s(1, 1), tasks.add.s(3), tasks.add.s(4)).delay().get(timeout=10) == 9
    assert group(tasks.add.s(i, i) for i in range(5)).delay().get(timeout=10) == [0, 2, 4, 6, 8]
    assert chord((tasks.add.s(i, i) for i in range(8)), tasks.total.s()).delay().get(timeout=10) == 56
    assert tasks.flaky.delay("once", 2).get(timeout=20) == 2


@pytest.mark.usefixtures("celery_worker")
def test_what_ends_a_process_elsewhere_ends_only_the_task(tasks: Any) -> None:
    for name in ("MemoryError", "SystemExit", "KeyboardInterrupt"):
        with pytest.raises(InternalError, match=name):
            tasks.raise_named.delay(name).get(timeout=20)
    assert tasks.add.delay(4, 3).get(timeout=10) == 7


def test_urgent_first_over_all_queues_and_unset_in_the_middle(
    redis_url: str, tasks: Any, tmp_path: Path
) -> None:
    for label, priority, queue in (
        ("batch-t", 9, "ccs.text"), ("unset-v", None, "ccs.vision"), ("standard-t", 7, "ccs.text"),
        ("interactive-v", 5, "ccs.vision"), ("realtime-t", 1, "ccs.text"), ("realtime-v", 1, "ccs.vision"),
        ("batch-v", 8, "ccs.vision"), ("interactive-t", 4, "ccs.text"),
    ):  # fmt: skip
        tasks.mark.apply_async((label,), queue=queue, priority=priority)
    process = start_worker(redis_url, tmp_path / "w.log", "-c", "1", "-Q", "ccs.text,ccs.vision")
    try:
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            wait_until(lambda: client.llen("test:ended") == 8, 30)
            order = client.lrange("test:started", 0, -1)
            assert client.keys("ccs.*") == []
    finally:
        stop(process)
    assert order == [
        "realtime-t", "realtime-v", "interactive-v", "interactive-t", "unset-v", "standard-t", "batch-t", "batch-v"
    ]  # fmt: skip


def test_a_second_worker_is_busy_at_once(redis_url: str, tasks: Any, tmp_path: Path) -> None:
    for number in range(8):
        tasks.mark.delay(str(number), 1.5)
    first = start_worker(redis_url, tmp_path / "a.log", "-c", "2", "-n", "a@localhost")
    with redis.Redis.from_url(redis_url) as client:
        try:
            wait_until(lambda: client.zcard("ccs:running") == 2, 30)
            assert client.zcard("ccs:waiting:ccs.text") == client.llen("ccs.text:1") == 6
            second = start_worker(redis_url, tmp_path / "b.log", "-c", "2", "-n", "b@localhost")
            try:
                most = 0

                def all_done() -> bool:
                    nonlocal most
                    most = max(most, client.zcard("ccs:running"))
                    return bool(client.llen("test:ended") == 8)

                wait_until(all_done, 30)
                assert most == 4
            finally:
                stop(second)
        finally:
            stop(first)
        assert client.lrange("test:started", 0, -1).__len__() == 8


@pytest.mark.usefixtures("celery_worker")
def test_a_delay_lies_in_the_ledger_and_runs_once(tasks: Any, redis_url: str) -> None:
    assert tasks.add.delay(0, 0).get(timeout=30) == 0
    later = tasks.mark.apply_async(("later",), countdown=1)
    with redis.Redis.from_url(redis_url) as client:
        assert client.zscore("ccs:delayed", later.id) is not None
        assert client.zcard("ccs:running") == 0
        assert later.get(timeout=15) == "later"
        assert client.lrange("test:started", 0, -1) == [b"later"]


def test_an_expired_task_never_starts(redis_url: str, tasks: Any, tmp_path: Path) -> None:
    late = tasks.mark.apply_async(("late",), expires=0.05)
    with redis.Redis.from_url(redis_url) as client:
        wait_until(
            lambda: client.time()[0] and float(client.zscore("ccs:expiry", late.id)) / 1000 < _now(client), 5
        )
        process = start_worker(redis_url, tmp_path / "w.log", "-c", "1")
        try:
            assert tasks.add.delay(1, 1).get(timeout=30) == 2
            assert client.llen("test:started") == 0
            assert wait_until(lambda: client.get(f"celery-task-meta-{late.id}"), 5)
            assert json.loads(client.get(f"celery-task-meta-{late.id}"))["status"] == "REVOKED"
        finally:
            stop(process)


def _now(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6


@pytest.mark.usefixtures("celery_worker")
def test_stock_control_clients_reach_the_worker(tasks: Any, redis_url: str) -> None:
    assert tasks.add.delay(1, 2).get(timeout=30) == 3
    stock = Celery("stock", broker=redis_url, set_as_current=False)
    replies = stock.control.inspect(timeout=5).ping()
    assert replies
    assert list(replies.values()) == [{"ok": "pong"}]
    stock.close()


def test_purge_cancels_what_waits(tasks: Any, redis_url: str) -> None:
    for number in range(3):
        tasks.mark.delay(str(number))
    with tasks.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("ccs.text") == 3
    with redis.Redis.from_url(redis_url) as client:
        assert client.zcard("ccs:waiting:ccs.text") == client.llen("ccs.text:1") == 0
