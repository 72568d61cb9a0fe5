"""What a job costs on the wire: the same commands and round trips for every job, however many ran before it."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from benchmarks.cost import one_by_one
from benchmarks.monitor import Monitor
from benchmarks.tap import Tap, Traffic
from ccs_broker import Client
from tests.workers import simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccs_broker.server import EmbeddedServer

JOBS = 200


@contextmanager
def tapped_worker(redis_server: EmbeddedServer, redis_url: str, folder: Path, rate: float) -> Iterator[Tap]:
    """A worker with one slot that has run jobs before; ``rate`` is in words a second."""
    # Sweeps are no part of a job's cost, and one may have to make good a ticket.
    calm = {"CCS_SWEEP_S": "300"}
    models = simulated_models(folder, rate)
    with Tap(redis_server.port) as tap, worker(tap.url, models, slots=1, environment=calm):
        with Client(redis_url) as client:
            assert len(list(one_by_one(tap, client, 2, 1))) == 2
        yield tap


@pytest.fixture
def client_tap(redis_server: EmbeddedServer, redis_url: str) -> Iterator[Tap]:
    with Tap(redis_server.port) as tap:
        yield tap


def test_the_200th_job_costs_what_the_10th_did(
    redis_server: EmbeddedServer, redis_url: str, client_tap: Tap, tmp_path: Path
) -> None:
    with (
        tapped_worker(redis_server, redis_url, tmp_path, 1000) as worker_tap,
        Client(client_tap.url) as client,
        Monitor(redis_url) as monitor,
    ):
        costs = list(one_by_one(worker_tap, client, JOBS, 1))
    once = Counter({"BRPOP": 1, "claim": 1, "append": 1, "finish": 1})
    exactly = Traffic(commands=once, trips=once)
    assert costs[9] == costs[199] == exactly
    assert costs == [exactly] * JOBS
    assert client_tap.traffic().trips["publish"] == client_tap.traffic().commands["publish"] == JOBS
    # What the scripts call inside doesn't grow either; once there is an estimate of such jobs, publishing reads it.
    for script in ("publish", "claim", "append", "finish"):
        calls = monitor.inside[script]
        assert len(calls) == JOBS
        learnt = int(script == "publish")
        assert max(calls[JOBS // 2 :]) <= max(calls[: JOBS // 2]) + learnt, (script, calls)


def test_a_step_costs_one_round_trip(redis_server: EmbeddedServer, redis_url: str, tmp_path: Path) -> None:
    with tapped_worker(redis_server, redis_url, tmp_path, 10) as worker_tap, Client(redis_url) as client:
        (cost,) = one_by_one(worker_tap, client, 1, 6)
    once = Counter({"BRPOP": 1, "claim": 1, "append": 6, "finish": 1})
    assert cost == Traffic(commands=once, trips=once)


def test_submitting_beside_waiting_jobs_costs_one_round_trip(client_tap: Tap) -> None:
    with Client(client_tap.url) as client:
        client.submit("text", prompt="the first opens the connection")
        for number in range(JOBS):
            before = client_tap.traffic()
            client.submit("text", prompt=str(number))
            once = Counter({"publish": 1})
            assert client_tap.traffic() - before == Traffic(commands=once, trips=once)
