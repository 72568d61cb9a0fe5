"""A server that goes away, freezes, refuses or drops connections: workers come back, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis

from ccs_broker import Client
from ccs_broker.errors import QueueFullError
from ccs_broker.ledger import Claim, ClaimWish, Ledger
from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from ccs_broker.settings import LedgerSettings
from ccs_workers.consume.app import build_app
from ccs_workers.publish.patience import GIVE_UP_CLOSING_S
from ccs_workers.settings import WorkerSettings
from tests.helpers import wait_until
from tests.workers import RunningWorker, simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccs_broker.client import JobHandle

pytestmark = pytest.mark.chaos
LEASE = {"CCS_LEASE_S": "2"}
#: Seconds after the server's return within which a new job must have run.
BACK_S = 10.0


@pytest.fixture
def server(server_kind: str, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own that keeps its data over a restart."""
    binary = server_binaries()[server_kind]
    with EmbeddedServer(binary=binary, appendonly=True, config={"appendfsync": "everysec"}) as found:
        yield found


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as found:
        yield found


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    with Client(server.url, timeout_s=2.0) as found:
        yield found


@pytest.fixture
def paced(server: EmbeddedServer, tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker with two slots, 20 words a second, and a lease of two seconds."""
    with worker(server.url, simulated_models(tmp_path, rate=20), slots=2, environment=LEASE) as running:
        yield running


def begin(client: Client, tokens: int) -> JobHandle:
    """Submit a job and wait for its first words."""
    job = client.submit("text", prompt=f"{tokens} words", max_new_tokens=tokens, seed=5)
    assert any(event.kind == "delta" for event in job.stream(timeout=20))
    return job


def check(job: JobHandle, running: RunningWorker, tokens: int) -> None:
    """One outcome, by the first attempt, and a stream without a hole."""
    outcome = job.result(timeout=30)
    assert (outcome.state, outcome.attempts, outcome.worker) == ("succeeded", 1, running.name)
    assert outcome.usage.completion_tokens == tokens
    events = list(job.stream(timeout=5))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert sum(event.terminal for event in events) == 1
    assert [event.kind.value for event in events][:2] == ["queued", "started"]
    assert {event.kind.value for event in events[2:-1]} == {"delta"}
    assert "".join(event.text for event in events) == outcome.text


def check_consumes(client: Client) -> None:
    """New jobs run soon, once each."""
    until = time.monotonic() + BACK_S
    jobs = [client.submit("text", prompt=f"new {n}", max_new_tokens=2) for n in range(6)]
    for job in jobs:
        assert job.result(timeout=max(0.1, until - time.monotonic())).attempts == 1


def check_worker(running: RunningWorker, raw: redis.Redis) -> None:
    """The worker lives, no lease is left, and its log can be read: no tracebacks, few complaints."""
    wait_until(lambda: not raw.zcard("ccs:running"), 5, "every lease to end")
    assert running.process.poll() is None
    assert "Traceback" not in running.output
    assert len(re.findall(r": (?:WARNING|ERROR|CRITICAL)/", running.output)) < 20


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


class Probe:
    """Asks a worker's health endpoint, whose port is in its log."""

    def __init__(self, running: RunningWorker) -> None:
        found = re.search(r"health endpoint on http://127\.0\.0\.1:(\d+)/", running.output)
        assert found is not None
        self.port = found.group(1)

    def __call__(self, path: str) -> tuple[int, dict[str, str]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)


def test_a_worker_ends_without_its_server(server: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    """It is told to stop while many jobs have something to say: it waits for the server once, not for each of them."""
    models = simulated_models(tmp_path, rate=20)
    with worker(server.url, models, slots=32, environment=LEASE) as running:
        jobs = [client.submit("text", prompt=str(n), max_new_tokens=2000) for n in range(32)]
        for job in jobs:
            assert any(event.kind == "delta" for event in job.stream(timeout=20))
        server.kill()
        running.process.terminate()
        assert running.process.wait(GIVE_UP_CLOSING_S + 15) == 0


@pytest.mark.redis
@pytest.mark.parametrize("away_s", [0.0, 5.0], ids=["restarted", "away for longer than the lease"])
def test_a_server_that_comes_back(
    server: EmbeddedServer, raw: redis.Redis, client: Client, paced: RunningWorker, away_s: float
) -> None:
    tokens = 60 + int(20 * away_s)
    job = begin(client, tokens)
    server.kill()
    time.sleep(away_s)
    server.restart()
    returned_ms = time.time() * 1000
    check_consumes(client)
    check(job, paced, tokens)
    told_ms = [int(fields[b"t"]) for _, fields in raw.xrange(f"ccs:log:{job.id}")]
    assert min(at_ms for at_ms in told_ms if at_ms > returned_ms) - returned_ms < 1000
    check_worker(paced, raw)


@pytest.mark.redis
def test_a_server_that_turns_read_only(
    server: EmbeddedServer, raw: redis.Redis, client: Client, paced: RunningWorker
) -> None:
    with closed_port() as nobody:
        for tokens in (120, 0):
            job = begin(client, tokens) if tokens else None
            raw.execute_command("REPLICAOF", "127.0.0.1", nobody)
            time.sleep(4.5 if tokens else 2.5)
            raw.execute_command("REPLICAOF", "NO", "ONE")
            check_consumes(client)
            if job is not None:
                check(job, paced, tokens)
    check_worker(paced, raw)


@pytest.mark.redis
def test_a_server_whose_memory_is_full(
    server: EmbeddedServer, raw: redis.Redis, client: Client, paced: RunningWorker
) -> None:
    job = begin(client, 40)
    raw.config_set("maxmemory", 100_000)
    begun = time.monotonic()
    with pytest.raises(QueueFullError):
        client.submit("text", prompt="no room")
    assert time.monotonic() - begun < 1.0
    # The engine is through by then, and its last words and the outcome wait for room.
    time.sleep(5)
    assert not job.status().state.terminal
    assert paced.report(raw)["busy"] == 1
    raw.config_set("maxmemory", 0)
    check_consumes(client)
    check(job, paced, 40)
    check_worker(paced, raw)


def test_a_server_that_freezes(
    server: EmbeddedServer, raw: redis.Redis, client: Client, paced: RunningWorker
) -> None:
    job = begin(client, 200)
    waiting = [client.submit("text", prompt=str(n), max_new_tokens=10) for n in range(4)]
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(11)
    os.kill(server.pid, signal.SIGCONT)
    check_consumes(client)
    for other in waiting:
        assert other.result(timeout=10).attempts == 1
    check(job, paced, 200)
    check_worker(paced, raw)


def test_connections_that_are_cut(
    server: EmbeddedServer, raw: redis.Redis, client: Client, paced: RunningWorker
) -> None:
    job = begin(client, 120)
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(event.seq for event in job.stream(timeout=30)))
    reader.start()
    short = [client.submit("text", prompt=str(n), max_new_tokens=4) for n in range(12)]
    for kind in ("normal", "pubsub") * 3:
        raw.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        time.sleep(0.5)
    for other in short:
        check(other, paced, 4)
    check(job, paced, 120)
    reader.join(5)
    assert seen == list(range(1, len(seen) + 1))
    cancelled = begin(client, 1000)
    raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert cancelled.cancel() == "cancelling"
    assert cancelled.result(timeout=5).state == "cancelled"
    check_consumes(client)
    check_worker(paced, raw)


def test_late_sweeps_give_leases_anew_but_not_for_ever(raw: redis.Redis, client: Client) -> None:
    """Swept by hand: what no worker renews waits again after three late sweeps, or after one and a lease's time."""
    ledger = Ledger(raw, LedgerSettings(lease_s=0.3, sweep_s=0.1))
    client.submit("text", prompt="x")
    raw.rpop("ccs.text:1")
    claim = ledger.claim(ClaimWish(popped="ccs.text", queues=("ccs.text",), worker="dead"))
    assert isinstance(claim, Claim)
    entry = (claim.id, claim.attempt)

    def late_sweep() -> int:
        raw.set("ccs:swept", 1, ex=60)
        time.sleep(0.4)
        return ledger.sweep().requeued

    assert [late_sweep() for _ in range(3)] == [0, 0, 0]
    assert ledger.renew([entry]) == ["ok"]
    assert [late_sweep() for _ in range(4)] == [0, 0, 0, 1]
    assert client.job(claim.id).status().state == "waiting"

    raw.rpop("ccs.text:1")
    again = ledger.claim(ClaimWish(popped="ccs.text", queues=("ccs.text",), worker="dead"))
    assert isinstance(again, Claim)
    raw.set("ccs:swept", 1, ex=60)
    began = time.monotonic()
    assert ledger.sweep().requeued == 0

    def swept_in_time() -> int:
        raw.set("ccs:swept", 2**53, ex=60)
        return ledger.sweep().requeued

    assert wait_until(swept_in_time, 5) == 1
    assert 0.2 < time.monotonic() - began < 1.0


def test_a_server_that_evicts_is_refused(raw: redis.Redis, server: EmbeddedServer, tmp_path: Path) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    models = simulated_models(tmp_path)
    with (
        pytest.raises(AssertionError, match="its maxmemory-policy is allkeys-lru"),
        worker(server.url, models),
    ):
        pass
    allowed = {"CCS_ALLOW_EVICTION": "1"}
    with worker(server.url, models, environment=allowed) as running:
        assert "JOBS AND RESULTS CAN VANISH" in running.output


def test_a_job_whose_log_takes_no_events_fails_alone_and_soon(
    raw: redis.Redis, client: Client, paced: RunningWorker
) -> None:
    broken, mate = begin(client, 1000), begin(client, 40)
    raw.set(f"ccs:log:{broken.id}", "not a stream", ex=60)
    wait_until(lambda: paced.report(raw)["busy"] != 2, 10, "the broken job's slot")
    check(mate, paced, 40)
    check_consumes(client)
    wait_until(lambda: not raw.zcard("ccs:running"), 5, "every lease to end")


def test_health_tells_whether_the_worker_consumes(
    server: EmbeddedServer, raw: redis.Redis, client: Client, tmp_path: Path
) -> None:
    options = ("--health-port", "0")
    environment = {**LEASE, "CCS_STALL_S": "1"}
    models = simulated_models(tmp_path, rate=20)
    with worker(server.url, models, slots=2, options=options, environment=environment) as running:
        ask = Probe(running)
        assert ask("/healthz") == ask("/readyz") == (200, {"state": "ready"})
        assert ask("/")[0] == 404

        control = build_app(WorkerSettings(url=server.url)).control
        try:
            control.cancel_consumer("ccs.text", destination=[running.name])
            wait_until(lambda: "Canceling queue ccs.text" in running.output, 5)
            job = client.submit("text", prompt="nobody listens", max_new_tokens=2)
            wait_until(lambda: ask("/healthz")[0] == 503, 10, "the worker to notice")
            code, said = ask("/readyz")
            assert (code, said["state"]) == (503, "stalled")
            assert said["reason"] == "1 jobs wait, slots are free, and nothing was claimed for 1 s"
            wait_until(lambda: [found.state for found in client.workers()] == ["stalled"], 5)
            assert running.report(raw)["reason"] == said["reason"]
            control.add_consumer("ccs.text", destination=[running.name])
            assert job.result(timeout=10).ok
            wait_until(lambda: ask("/healthz") == (200, {"state": "ready"}), 10, "it to be well again")
        finally:
            control.app.close()

        server.kill()
        wait_until(lambda: ask("/healthz")[0] == ask("/readyz")[0] == 503, 10, "the outage to show")
        assert "server" in ask("/healthz")[1]["reason"]
        server.restart()
        wait_until(lambda: ask("/healthz")[0] == ask("/readyz")[0] == 200, BACK_S, "the server's return")

        port = Probe(running).port
        with (
            pytest.raises(AssertionError, match=f"can't listen on 127.0.0.1:{port}"),
            worker(server.url, models, options=("--health-port", port)),
        ):
            pass


def test_a_draining_worker_is_alive_but_not_ready(
    server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    options = ("--health-port", "0", "--drain-seconds", "30")
    with worker(server.url, simulated_models(tmp_path, rate=20), options=options) as running:
        ask = Probe(running)
        job = begin(client, 40)
        running.process.terminate()
        wait_until(lambda: ask("/readyz") == (503, {"state": "draining"}), 5)
        assert ask("/healthz") == (200, {"state": "draining"})
        wait_until(lambda: [found.state for found in client.workers()] == ["draining"], 5)
        assert job.result(timeout=10).ok
        assert running.process.wait(15) == 0
