"""A real worker process with simulated engines: slots, streams, endings, bad input, engines that die."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from ccs_broker import Client
from ccs_broker.errors import NoSuitableWorkerError
from tests.helpers import process_runs, wait_until
from tests.workers import RunningWorker, simulated_models, stop, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccs_broker.contract import Event

CANARY = "canary-51c9"


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    """A client of this test's server."""
    with Client(redis_url) as found:
        yield found


@pytest.fixture
def paced(redis_url: str, tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker with four slots whose model says 20 words a second."""
    with worker(redis_url, simulated_models(tmp_path, rate=20), slots=4) as running:
        yield running


@pytest.mark.redis
@pytest.mark.usefixtures("no_key_leaks", "paced")
def test_two_subscribers_see_one_sequence_and_the_text_is_its_deltas(client: Client) -> None:
    job = client.submit("text", prompt="two readers", max_new_tokens=10, seed=3)
    early: list[Event] = []
    reader = threading.Thread(target=lambda: early.extend(job.stream(timeout=30)))
    reader.start()
    outcome = job.result(timeout=30)
    reader.join(10)
    late = list(client.job(job.id).stream(timeout=5))
    assert early == late
    assert [event.seq for event in late] == list(range(1, len(late) + 1))
    assert [event.kind.value for event in late] == ["queued", "started", *["delta"] * 10, "succeeded"]
    assert sum(event.terminal for event in late) == 1
    assert "".join(event.text for event in late) == outcome.text
    assert len(outcome.text.split()) == 10
    assert outcome.usage.completion_tokens == 10
    assert outcome.attempts == 1
    timings = outcome.timings
    assert timings.started_s is not None
    assert timings.first_output_s is not None
    assert timings.finished_s is not None
    assert 0 <= timings.started_s <= timings.first_output_s <= timings.finished_s


@pytest.mark.redis
def test_claims_never_exceed_slots_and_a_second_worker_is_busy_at_once(
    client: Client, paced: RunningWorker, redis_url: str, tmp_path: Path
) -> None:
    jobs = [client.submit("text", prompt=str(n), max_new_tokens=8) for n in range(100)]
    with redis.Redis.from_url(redis_url) as raw:
        wait_until(lambda: raw.zcard("ccs:running") == 4, 10)
        most = 0
        for _ in range(50):
            most = max(most, raw.zcard("ccs:running"))
            with raw.pipeline() as both:
                waiting, tickets = both.zcard("ccs:waiting:ccs.text").llen("ccs.text:1").execute()
            assert abs(waiting - tickets) <= 1
        assert most == 4
        second_folder = tmp_path / "second"
        second_folder.mkdir()
        with worker(redis_url, simulated_models(second_folder, rate=20), slots=4) as second:
            wait_until(lambda: raw.zcard("ccs:running") == 8, 5, "both to be busy")
            owners = {
                raw.hget(b"ccs:job:" + e.split(b"|")[0], "worker") for e in raw.zrange("ccs:running", 0, -1)
            }
            assert owners == {paced.name.encode(), second.name.encode()}
            outcomes = [job.result(timeout=60) for job in jobs]
        assert all(outcome.ok for outcome in outcomes)
        assert {outcome.worker for outcome in outcomes} == {paced.name, second.name}
        wait_until(lambda: raw.llen("ccs.text:1") == 0, 10)


def test_a_realtime_job_overtakes_what_waits(client: Client, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, simulated_models(tmp_path, rate=50), slots=1):
        batch = [client.submit("text", prompt=str(n), max_new_tokens=10, qos="batch") for n in range(6)]
        urgent = client.submit("audio", audio=b"sound", qos="realtime", max_new_tokens=2)
        assert urgent.result(timeout=30).ok
        done = [job.status().state for job in batch]
        assert done.count("succeeded") <= 2
        assert all(job.result(timeout=30).ok for job in batch)


@pytest.mark.usefixtures("paced")
def test_cancel_frees_the_slot_and_keeps_the_partial_text(client: Client) -> None:
    long = client.submit("text", prompt="long", max_new_tokens=1000)
    mate = client.submit("text", prompt="mate", max_new_tokens=30, seed=1)
    stream = long.stream(timeout=10)
    for event in stream:
        if event.kind == "delta":
            break
    assert long.cancel() == "cancelling"
    assert long.status().state in {"cancelling", "cancelled"}
    outcome = long.result(timeout=5)
    assert outcome.state == "cancelled"
    assert outcome.text
    assert outcome.text == "".join(e.text for e in client.job(long.id).stream())
    assert long.cancel() == "cancelled"
    assert (
        mate.result(timeout=10).text
        == client.submit("text", prompt="mate", max_new_tokens=30, seed=1).result().text
    )


@pytest.mark.usefixtures("paced")
def test_a_deadline_that_passes_while_running_ends_the_job(client: Client) -> None:
    outcome = client.submit("text", prompt="slow", max_new_tokens=1000, deadline_s=0.5).result(timeout=10)
    assert outcome.state == "expired"
    assert outcome.error is not None
    assert outcome.error.code == "DEADLINE_EXCEEDED"
    assert outcome.text


def test_bad_jobs_end_with_their_code_and_the_worker_goes_on(client: Client, paced: RunningWorker) -> None:
    with pytest.raises(NoSuitableWorkerError, match="nobody"):
        client.submit("text", prompt="x", model="nobody")
    wrong = client.submit("text", prompt="x", model="sim", max_new_tokens=5).result(timeout=20)
    assert wrong.ok
    with pytest.raises(NoSuitableWorkerError):
        client.submit("text", prompt="x", model="sim-vision")
    assert client.submit("text", prompt="x", max_new_tokens=1).result(timeout=20).ok
    assert paced.process.poll() is None


def test_a_payload_that_cannot_be_read_fails_its_job_alone(
    client: Client, paced: RunningWorker, redis_url: str, tmp_path: Path
) -> None:
    with redis.Redis.from_url(redis_url) as raw:
        os.kill(paced.process.pid, signal.SIGSTOP)
        broken = client.submit("text", prompt="x")
        raw.hset(f"ccs:job:{broken.id}", "job", b'{"v":99')
        newer = client.submit("text", prompt="x")
        raw.hset(f"ccs:job:{newer.id}", "job", b'{"v":99,"id":"x"}')
        os.kill(paced.process.pid, signal.SIGCONT)
        for job in (broken, newer):
            outcome = job.result(timeout=20)
            assert outcome.state == "failed"
            assert outcome.error is not None
            assert outcome.error.code == "INVALID_INPUT"
    assert client.submit("text", prompt="x", max_new_tokens=1).result(timeout=20).ok


def test_engines_end_with_a_worker_that_is_killed(paced: RunningWorker) -> None:
    engines = [child.pid for child in psutil.Process(paced.process.pid).children(recursive=True)]
    assert len(engines) == 3
    paced.process.kill()
    wait_until(lambda: not any(map(process_runs, engines)), 10, "the engines to end")


def test_the_lease_of_a_long_job_is_renewed(client: Client, redis_url: str, tmp_path: Path) -> None:
    models = simulated_models(tmp_path, rate=10)
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "ccs_workers",
        "worker",
        "--without-mingle",
        "-n",
        "native@h",
    ]
    environment = {
        **os.environ,
        "CCS_REDIS_URL": redis_url,
        "CCS_MODELS": str(models),
        "CCS_LEASE_S": "0.6",
        "CCS_SLOTS": "2",
    }
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        outcome = client.submit("text", prompt="long", max_new_tokens=30).result(timeout=60)
        assert outcome.ok
        assert outcome.attempts == 1
    finally:
        process.terminate()
        process.wait()


def test_another_pool_is_refused_with_the_reason(redis_url: str, tmp_path: Path) -> None:
    models = simulated_models(tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "ccs_workers", "worker", "-P", "solo", "-c", "1"],
        env={**os.environ, "CCS_REDIS_URL": redis_url, "CCS_MODELS": str(models)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert "--pool=threads" in run.stderr


def test_prefork_is_replaced_by_threads_and_celerys_own_command_works(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    """Celery can't tell ``-P prefork`` from its own default, and takes the pool of the settings instead."""
    models, log = simulated_models(tmp_path), tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "ccs_workers", "worker", "-P", "prefork", "-l", "INFO"],
            env={**os.environ, "CCS_REDIS_URL": redis_url, "CCS_MODELS": str(models), "CCS_SLOTS": "3"},
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        assert client.submit("text", prompt="x", max_new_tokens=2).result(timeout=60).ok
        assert "concurrency: 3 (thread)" in log.read_text()
    finally:
        stop(process)


def test_a_model_that_cannot_be_loaded_stops_the_worker_with_the_reason(
    redis_url: str, tmp_path: Path
) -> None:
    models = tmp_path / "models.toml"
    models.write_text('[models.bad]\nmodality = "text"\nengine = "simulated"\ntokens_per_second = -1\n')
    run = subprocess.run(
        [sys.executable, "-m", "ccs_broker.cli", "worker", "--url", redis_url, "--models", str(models)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode != 0
    assert "tokens_per_second" in run.stdout + run.stderr


def test_importing_the_worker_touches_no_torch_and_starts_no_thread(redis_url: str) -> None:
    script = (
        "import sys, threading, ccs_workers.celery as m; m.app.tasks;"
        "print('torch' in sys.modules, threading.active_count())"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "CCS_REDIS_URL": redis_url},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["False", "1"]


def test_prompts_stay_out_of_logs_events_and_every_key_but_the_payload(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, simulated_models(tmp_path, rate=20), options=("--log-level", "debug")) as running:
        with redis.Redis.from_url(redis_url) as raw, raw.pubsub() as events:
            events.psubscribe("*")
            job = client.submit(
                "text", prompt=f"say {CANARY}", metadata={"note": CANARY}, max_new_tokens=2000
            )
            for event in job.stream(timeout=10):
                if event.kind == "delta":
                    break
            command = [sys.executable, "-m", "celery", "-A", "ccs_workers", "inspect", "active", "--json"]
            active = subprocess.run(
                command,
                env={**os.environ, "CCS_REDIS_URL": redis_url},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            (tasks,) = json.loads(active[active.index("{") :]).values()
            assert tasks[0]["id"] == job.id
            assert tasks[0]["args"] == [{"job": job.id, "modality": "text"}]
            holders = [key for key in raw.scan_iter() if CANARY.encode() in dump(raw, key)]
            assert holders == [f"ccs:job:{job.id}".encode()]
            short = client.submit("text", prompt=f"say {CANARY}", metadata={"note": CANARY}, max_new_tokens=2)
            assert short.result(timeout=20).ok
            job.cancel()
            assert job.result(timeout=20).state == "cancelled"
            assert [key for key in raw.scan_iter() if CANARY.encode() in dump(raw, key)] == []
            heard = []
            while (message := events.get_message(timeout=0.2)) is not None:
                heard.append(readable(message["data"]))
            assert any("task-succeeded" in text for text in heard)
            assert not any(CANARY in text for text in heard)
            assert CANARY not in active
        assert CANARY not in running.output


def readable(data: object) -> str:
    """A pub/sub message as text; Celery's events carry their body in base64."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else str(data)
    try:
        return text + base64.b64decode(json.loads(text)["body"]).decode()
    except (ValueError, KeyError, TypeError):
        return text


def dump(raw: redis.Redis, key: bytes) -> bytes:
    """All bytes of a key's value, whatever its type (DUMP may compress)."""
    readers = {
        b"string": lambda: raw.get(key),
        b"hash": lambda: raw.hgetall(key),
        b"list": lambda: raw.lrange(key, 0, -1),
        b"set": lambda: raw.smembers(key),
        b"zset": lambda: raw.zrange(key, 0, -1),
        b"stream": lambda: raw.xrange(key),
    }
    kind = raw.type(key)
    return repr(readers[kind]() if kind in readers else b"").encode()
