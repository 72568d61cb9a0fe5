"""Real workers divide their slots as they were told, and let jobs make way for urgent ones, without a thrash."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis
from click.testing import CliRunner

from ccs_broker import Client
from ccs_broker.cli.group import ccs
from ccs_broker.contract import Sampling
from ccs_workers.engines.protocol import EngineJob
from ccs_workers.engines.simulated import digest_of, text_of
from tests.helpers import wait_until
from tests.workers import worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccs_broker.client import JobHandle

MODELS = """
[models.sim]
modality = "text"
engine = "simulated"
tokens_per_second = 20
{options}
[models.eyes]
modality = "vision"
shares = "sim"
[models.ears]
modality = "audio"
shares = "sim"
"""


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as found:
        yield found


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_url, decode_responses=True)) as found:
        yield found


def models(folder: Path, options: str = "") -> Path:
    """One engine for three modalities, at 20 words a second."""
    path = folder / "models.toml"
    path.write_text(MODELS.format(options=options))
    return path


def submit(client: Client, modality: str, **options: object) -> JobHandle:
    media = {"vision": {"images": [b"picture"]}, "audio": {"audio": b"sound"}}.get(modality, {})
    return client.submit(modality, prompt="x", max_new_tokens=10, **media, **options)  # type: ignore[arg-type]


def running(raw: redis.Redis) -> Counter[str]:
    """Running jobs by queue."""
    ids = [entry.partition("|")[0] for entry in raw.zrange("ccs:running", 0, -1)]
    found = (raw.hmget(f"ccs:job:{job_id}", "state", "queue") for job_id in ids)
    return Counter(queue for state, queue in found if state == "running")


def test_static_parts_are_neither_exceeded_nor_lent(
    client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    options = ("--allocation", "static", "--slots", "text=3,vision=2,audio=1")
    with worker(redis_url, models(tmp_path), slots=1, options=options) as fleet:
        report = fleet.report(raw)
        assert (report["slots"], report["slot_parts"]) == (6, {"text": 3, "vision": 2, "audio": 1})
        jobs = [submit(client, "text") for _ in range(12)]
        wait_until(lambda: running(raw)["ccs.text"] == 3)
        assert sum(running(raw).values()) == 3
        jobs += [submit(client, modality) for modality in ("vision", "audio") for _ in range(6)]
        wait_until(lambda: running(raw) == {"ccs.text": 3, "ccs.vision": 2, "ccs.audio": 1}, 5)
        most: Counter[str] = Counter()
        while any(running(raw).values()):
            most |= running(raw)
        assert most == {"ccs.text": 3, "ccs.vision": 2, "ccs.audio": 1}
        assert all(job.result(timeout=30).ok for job in jobs)


def test_a_floor_is_free_for_its_modality_however_much_else_waits(
    client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    options = ("--floors", "text=2,vision=1")
    with worker(redis_url, models(tmp_path), slots=5, options=options):
        flood = [submit(client, "audio", qos="realtime", overload="accept") for _ in range(20)]
        wait_until(lambda: running(raw)["ccs.audio"] == 2)
        texts = [submit(client, "text", qos="batch") for _ in range(3)]
        wait_until(lambda: running(raw)["ccs.text"] == 2, 2)
        seen = submit(client, "vision", qos="batch")
        wait_until(lambda: running(raw)["ccs.vision"] == 1, 2)
        most: Counter[str] = Counter()
        while any(running(raw).values()):
            now = running(raw)
            assert sum(now.values()) <= 5
            most |= now
        # Beyond its floor a modality takes what is nobody's.
        assert most["ccs.audio"] == 2
        assert all(job.result(timeout=30).ok for job in (*flood, *texts, seen))


def test_memory_bounds_what_runs_at_once(
    client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    # A job of ten new tokens needs 100 + 10 * (1 / 2 + 1 / 2 + 10) = 210 bytes.
    options = "memory_bytes = 1000\nweights_bytes = 300\nbytes_per_job = 100\nbytes_per_token = 10"
    with worker(redis_url, models(tmp_path, options), slots=8):
        jobs = [submit(client, "text", qos="realtime", overload="accept") for _ in range(9)]
        most = 0
        while raw.zcard("ccs:waiting:ccs.text") or any(running(raw).values()):
            most = max(most, running(raw)["ccs.text"])
        assert most == 3
        assert all(job.result(timeout=30).ok for job in jobs)


def long_batch(client: Client, number: int) -> JobHandle:
    return client.submit("text", prompt=f"long {number}", max_new_tokens=200, qos="batch", seed=number)


def whole_text(number: int) -> str:
    sampling = Sampling(max_new_tokens=200)
    return text_of(digest_of(EngineJob(key="", prompt=f"long {number}", sampling=sampling, seed=number)), 200)


def test_an_urgent_job_takes_the_place_of_a_long_one_which_is_continued(
    client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path), slots=2):
        long = [long_batch(client, number) for number in range(2)]
        wait_until(lambda: running(raw)["ccs.text"] == 2)
        wait_until(lambda: all(int(raw.hget(f"ccs:job:{job.id}", "seq") or 0) > 45 for job in long), 10)
        standard = submit(client, "vision", qos="standard")
        urgent = submit(client, "vision", qos="realtime")
        outcome = urgent.result(timeout=10)
        assert outcome.ok
        assert outcome.timings.started_s is not None
        assert outcome.timings.started_s < 1.5
        outcomes = [job.result(timeout=40) for job in long]
        assert [found.text for found in outcomes] == [whole_text(0), whole_text(1)]
        assert standard.result(timeout=20).ok
        events = [event for job in long for event in job.stream(timeout=5)]
        told = [event.data for event in events if event.kind.value == "preempted"]
        assert [data["reason"] for data in told if data] == ["preempted"]
        assert sorted(found.attempts for found in outcomes) == [1, 2]
        assert all(found.usage.completion_tokens == 200 for found in outcomes)


def test_jobs_make_way_twice_at_most_and_never_for_their_like(
    client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path), slots=2):
        long = [long_batch(client, number) for number in range(3)]
        wait_until(lambda: running(raw)["ccs.text"] == 2)
        # As bad as it gets: urgent jobs come one by one for as long as the long ones live.
        urgent = []
        while not all(job.status().state == "succeeded" for job in long):
            urgent.append(submit(client, "audio", qos="interactive", overload="accept"))
            urgent.append(submit(client, "vision", qos="standard"))
            urgent[-2].result(timeout=30)
        outcomes = [job.result(timeout=5) for job in long]
        assert [found.text for found in outcomes] == [whole_text(number) for number in range(3)]
        times = [sum(event.kind.value == "preempted" for event in job.stream(timeout=5)) for job in long]
        assert max(times) <= 2
        assert [found.attempts for found in outcomes] == [1 + count for count in times]
        assert sum(times) >= 1
        for job in urgent:
            assert job.result(timeout=30).attempts == 1


def test_device_time_adds_up_to_the_time_the_worker_was_busy(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    with worker(redis_url, models(tmp_path), slots=4):
        jobs = [client.submit("text", prompt=str(n), max_new_tokens=5 + n) for n in range(16)]
        outcomes = [job.result(timeout=30) for job in jobs]
        used_s = sum(outcome.usage.device_s or 0.0 for outcome in outcomes)
        timings = [outcome.timings for outcome in outcomes]
        # They were submitted at once, so one origin is as good as another.
        busy_s = max(t.finished_s or 0 for t in timings) - min(t.started_s or 0 for t in timings)
        assert used_s == pytest.approx(busy_s, rel=0.15)


def test_two_workers_learn_as_one(client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    rate = "seconds_per_image = 0.05"
    with (
        worker(redis_url, models(tmp_path, rate), slots=1) as one,
        worker(redis_url, models(other, rate), slots=1) as two,
    ):
        jobs = [
            client.submit("vision", prompt="x", images=[b"p"] * (1 + n % 3), max_new_tokens=1 + n % 5)
            for n in range(60)
        ]
        outcomes = [job.result(timeout=60) for job in jobs]
        assert {outcome.worker for outcome in outcomes} == {one.name, two.name}
        key = "ccs:stats:ccs.vision:"
        wait_until(lambda: float(raw.hget(key, "c0") or 0) > 50, 5, "both to have told all")
        work = {name: float(value) for name, value in raw.hgetall("ccs:work:ccs.vision:").items()}
        # Two pictures and three words: 0.1 s and 0.15 s, and some overhead.
        expected_us = work["c0"] + work["c1"] + 3 * work["c2"] + 2 * work["c3"] + 2 * work["c4"]
        assert expected_us == pytest.approx(250_000, rel=0.25)
        first_us = work["f0"] + work["f1"] + 3 * work["f2"] + 2 * work["f3"] + 2 * work["f4"]
        assert 40_000 < first_us < expected_us
        wait_until(lambda: any(one.report(raw).get("estimates", [])), 5)
        shown = json.loads(CliRunner().invoke(ccs, ["workers", "--json", "--url", redis_url]).stdout)
        (estimate,) = next(w["report"]["estimates"] for w in shown["workers"] if w["name"] == one.name)
        assert (estimate["modality"], estimate["model"]) == ("vision", None)
        assert estimate["error"] < 0.3


def test_what_does_not_fit_together_is_said_before_anything_starts(redis_url: str, tmp_path: Path) -> None:
    path = models(tmp_path)
    for options, complaint in (
        (("--slots", "text=3,vision=2,audio=1"), "belong to --allocation static"),
        (("--allocation", "static", "--floors", "text=1"), "belong to --allocation dynamic"),
        (("--allocation", "static", "--slots", "text=3,vision=2"), "audio without a slot"),
        (("--floors", "text=17"), "17 slots, the worker has 16"),
    ):
        shown = CliRunner().invoke(ccs, ["worker", "--models", str(path), "--url", redis_url, *options])
        assert shown.exit_code == 2, shown.output
        assert complaint in shown.stderr


def test_an_urgent_job_that_lacks_only_memory_takes_the_place_of_one_that_has_it(
    client: Client, raw: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    # Three long jobs need 1,110 bytes each; the urgent one needs 1,310, and finds 1,170 and free slots.
    options = "memory_bytes = 4500\nbytes_per_job = 100\nbytes_per_token = 10"
    with worker(redis_url, models(tmp_path, options), slots=8):
        long = [
            client.submit("text", prompt="x", max_new_tokens=100, qos="batch", seed=number)
            for number in range(3)
        ]
        wait_until(lambda: running(raw)["ccs.text"] == 3)
        wait_until(lambda: all(int(raw.hget(f"ccs:job:{job.id}", "seq") or 0) > 45 for job in long), 10)
        urgent = client.submit("vision", prompt="x", images=[b"p"], max_new_tokens=120, qos="realtime")
        outcome = urgent.result(timeout=20)
        assert outcome.timings.started_s is not None
        assert outcome.timings.started_s < 2
        outcomes = [job.result(timeout=40) for job in long]
        assert sorted(found.attempts for found in outcomes) == [1, 1, 2]
        assert all(found.usage.completion_tokens == 100 for found in outcomes)
