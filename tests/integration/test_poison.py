"""Jobs that kill what runs them: alone at last, then quarantined; innocent ones go on and the worker lives."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from ccs_broker import Client
from ccs_broker.ledger import Claim, ClaimWish, Ledger
from ccs_workers.executor.pool import LOAD_TRIES
from tests.helpers import wait_until
from tests.workers import RunningWorker, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.chaos

MODELS = """
[models.sim]
modality = "text"
engine = "simulated"
tokens_per_second = 20
crash_on = "POISON"
crash_after_tokens = {after}
hang_on = "HANG"
raise_on = "RAISE"
raise_kind = "{kind}"
"""


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as found:
        yield found


def models(tmp_path: Path, *, after: int = 0, kind: str = "device") -> Path:
    path = tmp_path / "models.toml"
    path.write_text(MODELS.format(after=after, kind=kind))
    return path


def check_streams(client: Client, ids: list[str]) -> None:
    for job_id in ids:
        events = list(client.job(job_id).stream(timeout=5))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert sum(event.terminal for event in events) == 1


def test_a_poison_job_is_quarantined_and_its_neighbors_go_on(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path, after=3), slots=4) as running:
        good = [client.submit("text", prompt=str(n), max_new_tokens=25, seed=n) for n in range(3)]
        wait_until(lambda: all(job.status().state == "running" for job in good), 10)
        bad = client.submit("text", prompt="POISON", max_new_tokens=20)
        outcome = bad.result(timeout=60)
        assert outcome.state == "quarantined"
        assert outcome.error is not None
        assert "signal 9" in outcome.error.message
        assert "3 times" in outcome.error.message
        assert outcome.text.split().__len__() == 3
        results = [job.result(timeout=60) for job in good]
        assert all(result.ok and len(result.text.split()) == 25 for result in results)
        again = [
            client.submit("text", prompt=str(n), max_new_tokens=25, seed=n).result(timeout=30)
            for n in range(3)
        ]
        assert [result.text for result in results] == [result.text for result in again]
        check_streams(client, [bad.id, *(job.id for job in good)])
        assert running.process.poll() is None


@pytest.mark.parametrize("crashes", [1, 2], ids=["let in one by one", "alone"])
def test_suspects_go_on_as_soon_as_they_get_beyond_their_crash(
    client: Client, redis_url: str, tmp_path: Path, crashes: int
) -> None:
    """All of an engine's jobs are suspects, none of them rightly: no one waits for another one's whole run."""
    with worker(redis_url, models(tmp_path), slots=8) as running, redis.Redis.from_url(redis_url) as raw:
        jobs = [client.submit("text", prompt=str(n), max_new_tokens=60, seed=n) for n in range(6)]
        wait_until(lambda: all(job.status().events > 4 for job in jobs), 10)
        for job in jobs:
            # As if engines had died under them before, with no progress since.
            raw.hset(f"ccs:job:{job.id}", mapping={"crashes": crashes, "crash_mark": 1000})
        os.kill(engine_pid(running, raw), signal.SIGKILL)
        results = [job.result(timeout=60) for job in jobs]
        assert all(result.ok and result.attempts == 1 for result in results)
        assert all(result.usage.completion_tokens == 60 for result in results)
        check_streams(client, [job.id for job in jobs])
        assert max(longest_silence_s(job.id, raw) for job in jobs) < 2.5
        assert [raw.hget(f"ccs:job:{job.id}", "crashes_alone") for job in jobs] == [b"0"] * 6
        again = client.submit("text", prompt="0", max_new_tokens=60, seed=0).result(timeout=30)
        assert results[0].text == again.text


def engine_pid(running: RunningWorker, raw: redis.Redis) -> int:
    found = running.report(raw)["models"]
    assert isinstance(found, list)
    return int(found[0]["pid"])


def longest_silence_s(job_id: str, raw: redis.Redis) -> float:
    """Longest time between two words of a job, by the broker's clock."""
    log = raw.xrange(f"ccs:log:{job_id}")
    times = [int(fields[b"t"]) for _, fields in log if fields[b"k"] == b"delta"]
    return max(later - earlier for earlier, later in pairwise(times)) / 1000


def test_a_death_that_is_told_twice_counts_once(client: Client, redis_url: str) -> None:
    """The reply of the first telling may be lost; an innocent job must not pay for that."""
    with redis.Redis.from_url(redis_url) as raw:
        client.submit("text", prompt="x")
        raw.rpop("ccs.text:1")
        ledger = Ledger(raw)
        claim = ledger.claim(ClaimWish(popped="ccs.text", queues=("ccs.text",), worker="w"))
        assert isinstance(claim, Claim)

        def told(outputs: int, death: int, *, alone: bool = False) -> tuple[int, int]:
            return ledger.crash(claim.id, claim.attempt, outputs, death=death, alone=alone)

        assert [told(5, 0), told(5, 0), told(5, 1), told(5, 1)] == [(1, 0), (1, 0), (2, 0), (2, 0)]
        assert [told(5, 2, alone=True), told(5, 2, alone=True)] == [(3, 1), (3, 1)]
        assert [told(6, 3), told(6, 3)] == [(1, 1), (1, 1)]
        assert ledger.crash(claim.id, claim.attempt + 1, 6, death=3, alone=False) == (-1, -1)


def test_a_lost_device_replaces_the_engine_and_ends_the_guilty_job_alone(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path), slots=4) as running:
        bad = client.submit("text", prompt="RAISE", max_new_tokens=5)
        good = [client.submit("text", prompt=str(n), max_new_tokens=5) for n in range(20)]
        assert bad.result(timeout=60).state == "quarantined"
        assert all(job.result(timeout=60).ok for job in good)
        check_streams(client, [bad.id, *(job.id for job in good)])
        assert running.process.poll() is None


@pytest.mark.parametrize(("kind", "code"), [("memory", "OUT_OF_MEMORY"), ("unknown", "ENGINE_FAILED")])
def test_an_error_of_one_job_fails_that_job_alone(
    client: Client, redis_url: str, tmp_path: Path, kind: str, code: str
) -> None:
    with worker(redis_url, models(tmp_path, kind=kind), slots=4):
        mate = client.submit("text", prompt="mate", max_new_tokens=20)
        outcome = client.submit("text", prompt="RAISE", max_new_tokens=5).result(timeout=20)
        assert (outcome.state, outcome.error.code if outcome.error else "") == ("failed", code)
        assert mate.result(timeout=20).ok
        assert [event.kind for event in mate.stream()].count("resumed") == 0


def test_a_job_that_memory_did_not_hold_is_tried_once_more_alone(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path, kind="memory"), slots=4):
        mate = client.submit("text", prompt="mate", max_new_tokens=40, seed=1)
        wait_until(lambda: mate.status().events > 4, 20)
        job = client.submit("text", prompt="RAISE", max_new_tokens=5)
        outcome = job.result(timeout=20)
        assert outcome.error is not None
        assert outcome.error.code == "OUT_OF_MEMORY"
        assert outcome.error.message.endswith("(0 bytes were reserved for it)")
        told = [event.data for event in job.stream() if event.kind == "resumed"]
        assert told == [{"reason": "the device's memory was full"}]
        assert mate.result(timeout=20).ok
        check_streams(client, [job.id, mate.id])


def test_engines_that_die_while_they_load_fail_nobody(client: Client, redis_url: str, tmp_path: Path) -> None:
    """More often than the worker loads in a row: its jobs go on all the same."""
    path = models(tmp_path)
    path.write_text(path.read_text() + "load_seconds = 1\n")
    with worker(redis_url, path, slots=2) as running:

        def hosts() -> list[psutil.Process]:
            found = psutil.Process(running.process.pid).children()
            return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]

        job = client.submit("text", prompt="x", max_new_tokens=40, seed=1)
        wait_until(lambda: job.status().state == "running" and job.status().events > 5, 20)
        killed: set[int] = set()
        for _ in range(LOAD_TRIES + 2):
            (host,) = wait_until(lambda: [one for one in hosts() if one.pid not in killed], 20)
            killed.add(host.pid)
            host.kill()
        outcome = job.result(timeout=30)
        assert (outcome.state, outcome.attempts) == ("succeeded", 1)
        check_streams(client, [job.id])


def test_a_step_that_hangs_is_ended_by_replacing_the_engine(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path), slots=2) as running:
        mate = client.submit("text", prompt="mate", max_new_tokens=30, seed=1)
        hung = client.submit("text", prompt="HANG", max_new_tokens=5, max_runtime_s=1.0)
        outcome = hung.result(timeout=20)
        assert (outcome.state, outcome.error.code if outcome.error else "") == ("expired", "RUNTIME_EXCEEDED")
        assert mate.result(timeout=20).ok
        check_streams(client, [mate.id, hung.id])
        assert running.process.poll() is None


def test_a_cancelled_hung_job_frees_its_slot(client: Client, redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, models(tmp_path), slots=1) as running:
        hung = client.submit("text", prompt="HANG", max_new_tokens=5)
        wait_until(lambda: hung.status().state == "running", 10)
        assert hung.cancel() == "cancelling"
        assert hung.result(timeout=20).state == "cancelled"
        assert client.submit("text", prompt="next", max_new_tokens=2).result(timeout=20).ok
        assert slots_in_use(running, redis_url) == 0


def slots_in_use(running: RunningWorker, redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as raw:
        return wait_until(lambda: int(running.report(raw)["busy"] == 0), 10) - 1


def test_a_frozen_engine_is_replaced_without_any_deadline(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path), slots=2) as running:
        job = client.submit("text", prompt="calm", max_new_tokens=60, seed=1)
        wait_until(lambda: job.status().events > 4, 10)
        with redis.Redis.from_url(redis_url) as raw:
            os.kill(engine_pid(running, raw), signal.SIGSTOP)
        outcome = job.result(timeout=60)
        assert outcome.ok
        assert len(outcome.text.split()) == 60
        check_streams(client, [job.id])
        assert [event.kind for event in job.stream()].count("resumed") == 1
