"""Enqueue and consume beside stock Celery, and ``Client.submit`` beside stock ``apply_async``, on one server."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from redis import Redis

from benchmarks.report import Figure, median_ratio, show
from benchmarks.workers import running
from ccs_broker import Client
from ccs_broker.server import EmbeddedServer

JOBS = 3000
PAIRS = 5


def enqueue(url: str, kind: str, *, results: bool = False) -> float:
    """Tasks a second that a fresh producer process enqueues, with or without a result to wait for."""
    script = (
        "import time; from benchmarks.noop_app import noop\n"
        f"noop.apply_async(({JOBS},))\nstart = time.perf_counter()\n"
        f"for _ in range({JOBS - 1}): noop.apply_async(({JOBS},))\n"
        f"print({JOBS - 1} / (time.perf_counter() - start))"
    )
    environment = {**os.environ, **_environment(url, kind), "CCS_BENCH_RESULTS": "1" if results else ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def consume(url: str, kind: str) -> float:
    """Tasks a second that a worker consumes of those waiting, from its first to its last."""
    command = [
        sys.executable, "-m", "celery", "-A", "benchmarks.noop_app", "worker", "-l", "ERROR",
        "--without-mingle", "--without-gossip", "--without-heartbeat",
    ]  # fmt: skip
    with running(command, environment=_environment(url, kind)), Redis.from_url(url) as client:
        deadline = time.monotonic() + 120
        while (elapsed := client.get("bench:elapsed")) is None:
            if time.monotonic() > deadline:
                raise RuntimeError("the worker did not consume in time")
            time.sleep(0.05)
    return JOBS / float(elapsed)


def submit(url: str) -> float:
    """Jobs a second through ``Client.submit``, one by one from one thread."""
    with Client(url) as client:
        client.submit("text", prompt="x")
        start = time.perf_counter()
        for _ in range(JOBS):
            client.submit("text", prompt="x")
        return JOBS / (time.perf_counter() - start)


def _environment(url: str, kind: str) -> dict[str, str]:
    return {"CCS_REDIS_URL": url, "CCS_BENCH_TRANSPORT": kind}


def main() -> bool:
    """Run all pairs and print; True if every bar is met."""
    rates: dict[str, list[float]] = {
        name: [] for name in ("stock-in", "stock-out", "stock-results", "ours-in", "ours-out", "submit")
    }
    with EmbeddedServer() as server, Redis.from_url(server.url) as redis:
        for _ in range(PAIRS):
            for kind, label in (("stock", "stock"), ("ledger", "ours")):
                redis.flushall()
                rates[f"{label}-in"].append(enqueue(server.url, kind))
                rates[f"{label}-out"].append(consume(server.url, kind))
            redis.flushall()
            rates["stock-results"].append(enqueue(server.url, "stock", results=True))
            redis.flushall()
            rates["submit"].append(submit(server.url))
    median = {name: sorted(values)[len(values) // 2] for name, values in rates.items()}
    return show(
        f"No-op tasks on one server, {PAIRS} alternating runs of {JOBS}",
        [
            Figure(name="stock apply_async with a result", value=median["stock-results"], unit="/s"),
            Figure(name="stock apply_async, result ignored", value=median["stock-in"], unit="/s"),
            Figure(name="ledger apply_async", value=median["ours-in"], unit="/s"),
            Figure(name="Client.submit", value=median["submit"], unit="/s"),
            Figure(name="stock consume", value=median["stock-out"], unit="/s"),
            Figure(name="ledger consume", value=median["ours-out"], unit="/s"),
            Figure(
                name="apply_async, ledger / stock",
                value=median_ratio(rates["ours-in"], rates["stock-in"]),
                unit="x",
                bar=0.9,
            ),
            Figure(
                name="consume, ledger / stock",
                value=median_ratio(rates["ours-out"], rates["stock-out"]),
                unit="x",
                bar=0.9,
            ),
            Figure(
                name="Client.submit / stock apply_async with a result",
                value=median_ratio(rates["submit"], rates["stock-results"]),
                unit="x",
                bar=3.0,
            ),
            Figure(
                name="Client.submit / stock apply_async, result ignored",
                value=median_ratio(rates["submit"], rates["stock-in"]),
                unit="x",
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(not main())
