"""Flower and inspect beside a busy worker: jobs by id and modality, queues with their depth, nothing of prompts."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ccs_broker import Client
from ccs_broker.server import free_port
from tests.helpers import wait_until
from tests.workers import simulated_models, stop, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGIN = "tester:secret"
CANARY = "canary-93be"


class FlowerPage:
    """Fetches Flower's pages with the login."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, *, login: str | None = LOGIN) -> str:
        headers = {}
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        request = urllib.request.Request(self._base + path, headers=headers)
        with self._opener.open(request, timeout=20) as answer:
            body: bytes = answer.read()
        return body.decode()

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def up(self) -> bool:
        try:
            return self.get("/healthcheck", login=None) == "OK"
        except OSError:
            return False


@contextmanager
def flower(url: str, log: Path) -> Iterator[FlowerPage]:
    """Flower as the docs start it: on the loopback address, behind a login."""
    port = free_port()
    command = [
        sys.executable, "-m", "celery", "-A", "ccs_workers", "flower", "--address=127.0.0.1", f"--port={port}",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "CCS_REDIS_URL": url, "FLOWER_BASIC_AUTH": LOGIN},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        page = FlowerPage(port)
        wait_until(page.up, 60, f"Flower to answer: {log.read_text()[-1000:]}")
        yield page
    finally:
        stop(process)


def test_a_busy_worker_its_jobs_and_its_queues(redis_url: str, tmp_path: Path) -> None:
    with (
        flower(redis_url, tmp_path / "flower.log") as page,
        worker(redis_url, simulated_models(tmp_path, rate=10), slots=1) as running,
        Client(redis_url) as client,
    ):
        done = client.submit("text", prompt=f"first {CANARY}", max_new_tokens=2)
        assert done.result(timeout=30).ok
        busy = client.submit("text", prompt=CANARY, max_new_tokens=200)
        wait_until(lambda: busy.status().state == "running", 10)
        for _ in range(3):
            client.submit("text", prompt=CANARY, qos="batch")

        assert wait_until(lambda: page.json("/workers?json=1")["data"], 20)
        (row,) = [row for row in page.json("/workers?json=1")["data"] if row["hostname"] == running.name]
        assert row["status"] is True
        assert wait_until(lambda: page.json("/api/workers?refresh=1").get(running.name, {}).get("stats"), 20)
        ping = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "ccs_workers", "inspect", "ping", "--json"],
            env={**os.environ, "CCS_REDIS_URL": redis_url}, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        assert running.name in ping.stdout

        task = wait_until(lambda: page.json("/api/tasks").get(done.id), 10)
        assert (task["name"], task["state"]) == ("ccs.run", "SUCCESS")
        assert (
            task["worker"]["hostname"] if isinstance(task["worker"], dict) else task["worker"] == running.name
        )
        assert "'modality': 'text'" in task["args"]
        assert done.id in task["args"]
        assert task["runtime"] > 0
        assert (
            busy.id in page.get("/tasks?state=STARTED")
            or page.json("/api/tasks")[busy.id]["state"] == "STARTED"
        )

        queues = {row["name"]: row["messages"] for row in page.json("/api/queues/length")["active_queues"]}
        assert queues["ccs.text"] == 3
        assert queues["ccs.vision"] == 0
        broker = page.get("/broker")
        assert "ccs.text" in broker

        pages = [
            broker,
            page.get("/api/tasks"),
            page.get(f"/task/{busy.id}"),
            page.get(f"/worker/{running.name}"),
        ]
        assert not any(CANARY in text for text in pages)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            page.get("/api/tasks", login=None)
        assert CANARY not in running.output + (tmp_path / "flower.log").read_text()
        busy.cancel()
