"""Submit to first output at a subscriber, with an instant engine, beside the raw round trip of the same run."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from redis import Redis

from benchmarks.report import Figure, percentile, show
from benchmarks.workers import ccs_worker
from ccs_broker import Client
from ccs_broker.server import EmbeddedServer

JOBS = 500
MODELS = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
tokens = 1
"""


def first_output(client: Client) -> float:
    """Seconds from the call of submit until the first delta is in the caller's hands."""
    start = time.perf_counter()
    for event in client.submit("text", prompt="x", max_new_tokens=1).stream(timeout=30):
        if event.kind == "delta":
            return time.perf_counter() - start
    raise RuntimeError("the job ended without a delta")


def round_trip(redis: Redis) -> float:
    """Seconds of one PING."""
    start = time.perf_counter()
    redis.ping()
    return time.perf_counter() - start


def main() -> bool:
    """Measure and print; True if every bar is met."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
        models = Path(folder) / "models.toml"
        models.write_text(MODELS)
        with (
            ccs_worker(server.url, models, 4),
            Client(server.url) as client,
            Redis.from_url(server.url) as redis,
        ):
            client.submit("text", prompt="warm up", max_new_tokens=1).result(timeout=60)
            seconds = []
            raw = []
            for _ in range(JOBS):
                raw.append(round_trip(redis))
                seconds.append(first_output(client))
    in_ms = [value * 1000 for value in seconds]
    raw_ms = [value * 1000 for value in raw]
    return show(
        f"Submit to first delta, instant engine, {JOBS} jobs one after another",
        [
            Figure(name="raw round trip p50", value=percentile(raw_ms, 50), unit="ms"),
            Figure(name="raw round trip p99", value=percentile(raw_ms, 99), unit="ms"),
            Figure(name="first delta p50", value=percentile(in_ms, 50), unit="ms", bar=6.0, at_most=True),
            Figure(name="first delta p99", value=percentile(in_ms, 99), unit="ms", bar=25.0, at_most=True),
        ],
    )


if __name__ == "__main__":
    sys.exit(not main())
