"""What dies is continued: workers that are killed or frozen, engines, shutdowns; one stream without holes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import redis

from ccs_broker import Client
from tests.claiming import Desk
from tests.helpers import wait_until
from tests.workers import RunningWorker, simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccs_broker.client import JobHandle
    from ccs_broker.contract import Event

pytestmark = pytest.mark.redis
LEASE = {"CCS_LEASE_S": "1"}


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as found:
        yield found


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def begin(client: Client, prompt: str = "a long answer", tokens: int = 40) -> JobHandle:
    """Submit a job and wait for its first words."""
    job = client.submit("text", prompt=prompt, max_new_tokens=tokens, seed=5)
    for event in job.stream(timeout=20):
        if event.kind == "delta":
            return job
    raise AssertionError("no delta came")


def undisturbed(client: Client, prompt: str = "a long answer", tokens: int = 40) -> str:
    """The text of the same job, run without a fault."""
    return client.submit("text", prompt=prompt, max_new_tokens=tokens, seed=5).result(timeout=60).text


def check_stream(job: JobHandle) -> list[Event]:
    """The job's whole stream: no hole, one end, and its deltas are the outcome's text."""
    events = list(job.stream(timeout=5))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert sum(event.terminal for event in events) == 1
    assert "".join(event.text for event in events) == job.result(timeout=5).text
    return events


@pytest.mark.chaos
@pytest.mark.usefixtures("no_key_leaks")
def test_a_killed_workers_job_is_continued_by_another(client: Client, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, simulated_models(folder(tmp_path, "a"), rate=20), environment=LEASE) as first:
        job = begin(client)
        os.kill(first.process.pid, signal.SIGKILL)
        with worker(redis_url, simulated_models(folder(tmp_path, "b"), rate=20), environment=LEASE) as second:
            outcome = job.result(timeout=20)
            assert (outcome.state, outcome.attempts, outcome.worker) == ("succeeded", 2, second.name)
            kinds = [event.kind.value for event in check_stream(job)]
            assert kinds.count("resumed") == 1
            assert kinds.count("started") == 1
            assert outcome.usage.completion_tokens == 40
            assert outcome.text == undisturbed(client)


@pytest.mark.chaos
def test_a_frozen_worker_that_wakes_can_write_nothing(client: Client, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, simulated_models(folder(tmp_path, "a"), rate=20), environment=LEASE) as first:
        job = begin(client)
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            with worker(
                redis_url, simulated_models(folder(tmp_path, "b"), rate=20), environment=LEASE
            ) as second:
                wait_until(lambda: job.status().attempt == 2, 15, "the lease to run out")
                os.kill(first.process.pid, signal.SIGCONT)
                outcome = job.result(timeout=20)
                assert (outcome.state, outcome.attempts, outcome.worker) == ("succeeded", 2, second.name)
                events = check_stream(job)
                attempts = [event.attempt for event in events]
                assert attempts == sorted(attempts)
                assert outcome.text == undisturbed(client)
                with redis.Redis.from_url(redis_url) as raw:
                    wait_until(lambda: first.report(raw)["busy"] == 0, 15, "the woken worker to drop the job")
        finally:
            os.kill(first.process.pid, signal.SIGCONT)


def test_sigterm_hands_running_jobs_to_another_worker(client: Client, redis_url: str, tmp_path: Path) -> None:
    with (
        worker(redis_url, simulated_models(folder(tmp_path, "a"), rate=10), slots=4) as first,
        worker(redis_url, simulated_models(folder(tmp_path, "b"), rate=10), slots=8) as second,
    ):
        jobs = {str(n): client.submit("text", prompt=str(n), max_new_tokens=40, seed=5) for n in range(12)}
        wait_until(lambda: all(job.status().state == "running" for job in jobs.values()), 10)
        handed = {prompt: job for prompt, job in jobs.items() if job.status().worker == first.name}
        assert len(handed) == 4
        first.process.terminate()
        assert first.process.wait(15) == 0
        for prompt, job in handed.items():
            outcome = job.result(timeout=30)
            assert (outcome.state, outcome.worker) == ("succeeded", second.name)
            kinds = [event.kind.value for event in check_stream(job)]
            assert kinds.count("preempted") == 1
            assert kinds.index("preempted") + 1 in (
                kinds.index("resumed") if "resumed" in kinds else -1,
                len(kinds) - 1 - kinds[::-1].index("started"),
            )
            assert outcome.text == undisturbed(client, prompt)


def test_a_drain_lets_short_jobs_end_and_a_second_signal_is_faster(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    options = ("--drain-seconds", "60")
    with worker(redis_url, simulated_models(tmp_path, rate=20), options=options) as first:
        short, long = begin(client, "short", 20), begin(client, "long", 1000)
        first.process.terminate()
        assert short.result(timeout=10).state == "succeeded"
        assert [event.kind.value for event in check_stream(short)].count("preempted") == 0
        first.process.terminate()
        assert first.process.wait(15) == 0
        assert long.status().state == "waiting"
        with redis.Redis.from_url(redis_url) as raw:
            assert raw.llen("ccs.text:1") == 1
            assert raw.zcard("ccs:running") == 0


def test_an_engine_that_dies_is_replaced_and_its_jobs_go_on(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, simulated_models(tmp_path, rate=20)) as running:
        jobs = [begin(client, str(n)) for n in range(3)]
        with redis.Redis.from_url(redis_url) as raw:
            os.kill(engine_pid(running, raw), signal.SIGKILL)
            for number, job in enumerate(jobs):
                outcome = job.result(timeout=20)
                assert (outcome.state, outcome.attempts) == ("succeeded", 1)
                assert [event.kind.value for event in check_stream(job)].count("resumed") == 1
                assert outcome.text == undisturbed(client, str(number))
            assert running.process.poll() is None


def engine_pid(running: RunningWorker, raw: redis.Redis) -> int:
    models = running.report(raw)["models"]
    assert isinstance(models, list)
    return int(next(model["pid"] for model in models if model["alias"] == "sim"))


def test_a_runtime_limit_ends_the_job_with_its_partial_text(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, simulated_models(tmp_path, rate=20), slots=1):
        outcome = client.submit("text", prompt="x", max_new_tokens=1000, max_runtime_s=0.5).result(timeout=10)
        assert (outcome.state, outcome.error.code if outcome.error else "") == ("expired", "RUNTIME_EXCEEDED")
        assert outcome.text
        assert client.submit("text", prompt="next", max_new_tokens=1).result(timeout=10).ok


@pytest.mark.chaos
def test_a_job_whose_workers_are_lost_time_and_again_is_quarantined(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with redis.Redis.from_url(redis_url) as raw:
        job = client.submit("text", prompt="x", max_new_tokens=3)
        raw.hset(f"ccs:job:{job.id}", mapping={"losses": 19, "state": "running", "attempt": 19})
        raw.zrem("ccs:waiting:ccs.text", job.id)
        raw.zadd("ccs:running", {f"{job.id}|19": 1})
        with worker(redis_url, simulated_models(tmp_path), environment=LEASE):
            outcome = job.result(timeout=20)
            assert (outcome.state, outcome.error.code if outcome.error else "") == (
                "quarantined",
                "WORKER_LOST",
            )
            assert client.submit("text", prompt="next", max_new_tokens=1).result(timeout=10).ok


def test_leases_begin_anew_where_nobody_has_ever_swept(redis_url: str) -> None:
    """The first sweep of all can't know how long nobody could renew; it takes no job from a living worker."""
    with Desk(redis_url, lease_s=2.0) as desk:
        desk.publish("job")
        desk.claim()
        desk.go(10)
        assert desk.ledger.sweep().requeued == 0
        assert desk.ledger.renew([("job", 1)]) == ["ok"]
