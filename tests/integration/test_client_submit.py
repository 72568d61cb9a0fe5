"""Submitting, looking and cancelling through the client, on real servers."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ccs_broker.blobs import get_blob, read_blob
from ccs_broker.client import Client, JobState
from ccs_broker.contract import Job, Limits, OutcomeState
from ccs_broker.contract.wire import load_json
from ccs_broker.errors import (
    ConflictError,
    InvalidInputError,
    NoSuitableWorkerError,
    NotFoundError,
    PayloadTooLargeError,
)
from ccs_broker.settings import LedgerSettings
from tests.helpers import leaked_keys, wait_until
from tests.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.redis


@pytest.fixture
def client(redis_url):
    with Client(redis_url) as client:
        yield client


@pytest.fixture
def worker(redis_url):
    with ScriptedWorker(redis_url) as worker:
        yield worker


def commands_of(server, action):
    """The commands that the server executes for ``action``, without those that scripts call."""
    server.ping()
    with server.monitor() as monitor:
        action()
        server.echo("the end")
        seen = []
        for entry in monitor.listen():
            if "the end" in entry["command"]:
                return seen
            word = entry["command"].split()[0]
            if entry["client_type"] != "lua" and word not in {"HELLO", "CLIENT"}:
                seen.append(word)
    return seen


def test_submitting_is_one_command_and_stores_the_job(client, worker):
    client.submit("text", prompt="warm up")
    handles = []
    seen = commands_of(worker.redis, lambda: handles.append(client.submit("text", prompt="hé", seed=3)))
    assert seen == ["EVALSHA"]
    worker.claim()
    claim = worker.claim()
    assert claim.id == handles[0].id
    job = load_json(Job, claim.payload)
    assert (job.id, job.prompt, job.sampling.seed) == (claim.id, "hé", 3)


def test_media_go_to_the_store_in_the_same_round_trip_and_leave_after_the_end(client, worker, tmp_path):
    (tmp_path / "b.png").write_bytes(b"second")
    images = [b"first", str(tmp_path / "b.png")]
    client.submit("text", prompt="warm up")
    seen = commands_of(worker.redis, lambda: client.submit("vision", prompt="?", images=images))
    assert seen == ["SET", "SET", "EVALSHA"]
    claim = worker.claim("ccs.vision")
    job = load_json(Job, claim.payload)
    found = [read_blob(ref, worker.redis.execute_command(*get_blob(ref))) for ref in job.images]
    assert found == [b"first", b"second"]
    assert len(claim.payload) < 1000
    keys = [f"ccs:blob:{image.sha256}" for image in job.images]
    assert all(worker.redis.ttl(key) > 24 * 3600 for key in keys)
    worker.finish()
    assert all(0 < worker.redis.ttl(key) <= 60 for key in keys)


def test_five_pictures_of_5_mb_grow_the_server_by_little_more(client, worker):
    pictures = [os.urandom(5_000_000) for _ in range(5)]
    for picture in pictures:
        client.submit("vision", images=[picture])
    # The server also keeps a buffer of one picture's size for the connection, for a while.
    used = sum(worker.redis.memory_usage(key) for key in worker.redis.scan_iter())
    assert used < 1.2 * sum(map(len, pictures))
    assert all(len(ticket) < 100 for ticket in worker.redis.lrange("ccs.vision:1", 0, -1))


def test_a_medium_in_use_keeps_its_life_when_it_is_submitted_again(client, worker, redis_url):
    client.submit("vision", images=[b"same"])
    key = next(iter(worker.redis.scan_iter("ccs:blob:*")))
    life = worker.redis.ttl(key)
    worker.redis.zadd("ccs:models:vision", {"ocr": 9e15})
    with pytest.raises(NoSuitableWorkerError, match="no worker serves the model 'none' for vision"):
        client.submit("vision", images=[b"same"], model="none")
    assert worker.redis.ttl(key) >= life - 2
    assert client.submit("vision", images=[b"same"], model="ocr").status().state is JobState.WAITING


def test_a_model_is_not_judged_while_nobody_serves_the_modality(client):
    assert client.submit("text", prompt="p", model="anything").status().model == "anything"


def test_fifty_threads_with_one_key_make_one_job(client, worker):
    barrier = threading.Barrier(50)

    def submit(number):
        barrier.wait()
        return client.submit("text", prompt="p", idempotency_key="order-1").id

    with ThreadPoolExecutor(50) as pool:
        ids = set(pool.map(submit, range(50)))
    assert len(ids) == 1
    assert worker.redis.llen("ccs.text:1") == worker.redis.zcard("ccs:waiting:ccs.text") == 1
    worker.run("done")
    assert client.submit("text", prompt="p", idempotency_key="order-1").result(timeout=1).text == "done"
    assert worker.redis.llen("ccs.text:1") == 0


def test_a_key_is_of_one_tenant_and_one_body(client):
    first = client.submit("text", prompt="p", idempotency_key="k")
    with pytest.raises(ConflictError, match=f"was used for job {first.id}, with another body"):
        client.submit("text", prompt="changed", idempotency_key="k")
    other = client.submit("text", prompt="changed", idempotency_key="k", tenant="acme")
    assert other.id != first.id


def test_a_key_is_free_again_when_its_jobs_record_has_gone(redis_url):
    short = LedgerSettings(job_ttl_s=1, log_ttl_s=1)
    with Client(redis_url, ledger=short) as client:
        first = client.submit("text", prompt="p", idempotency_key="k")
        first.cancel()
        assert client.submit("text", prompt="p", idempotency_key="k").id == first.id
        second = wait_until(lambda: _other_than(first.id, client), timeout_s=5)
        assert client.job(second).status().state is JobState.WAITING


def _other_than(job_id, client):
    found = client.submit("text", prompt="p", idempotency_key="k").id
    return found if found != job_id else None


def test_a_bulk_submission_keeps_its_order_and_tells_refusals(client, worker):
    client.submit("text", prompt="first", idempotency_key="k")
    jobs = [{"modality": "text", "prompt": str(number)} for number in range(700)]
    jobs[5] = {"modality": "text", "prompt": "other", "idempotency_key": "k"}
    found = client.submit_many(jobs, return_errors=True)
    assert isinstance(found[5], ConflictError)
    payloads = [worker.redis.hget(f"ccs:job:{found[i].id}", "job") for i in (0, 4, 6, 699)]
    assert [load_json(Job, payload).prompt for payload in payloads] == ["0", "4", "6", "699"]
    assert client.queues().waiting == 700
    with pytest.raises(ConflictError):
        client.submit_many(jobs[4:7])
    assert client.queues().waiting == 702


def test_a_job_too_large_leaves_nothing_behind(redis_url, worker):
    with Client(redis_url, limits=Limits(image_bytes=1000)) as client:
        with pytest.raises(PayloadTooLargeError, match="limit image_bytes of 1000"):
            client.submit("vision", images=[b"x" * 1001])
        with pytest.raises(PayloadTooLargeError, match="text_bytes"):
            client.submit("text", prompt="x" * 2**21)
        with pytest.raises(InvalidInputError, match="job 1"):
            client.submit_many([{"modality": "text", "prompt": "p"}, {"modality": "nonsense"}])
    assert worker.redis.dbsize() == 0


def test_status_tells_where_a_job_is(client, worker):
    jobs = [client.submit("text", prompt="p", qos=qos) for qos in ("batch", "realtime", "standard")]
    assert [job.status().position for job in jobs] == [2, 0, 1]
    first = jobs[1].status()
    assert (first.state, first.queue, first.attempt, first.events) == (JobState.WAITING, "ccs.text", 0, 1)
    assert first.submitted_ms > 1.6e12
    assert first.expires_ms - first.submitted_ms == 7 * 24 * 3600 * 1000
    assert (first.worker, first.started_ms, first.finished_ms) == (None, None, None)
    worker.claim()
    worker.say("x")
    running = jobs[1].status()
    assert (running.state, running.position, running.worker, running.attempt) == (
        "running",
        None,
        "scripted",
        1,
    )
    assert running.submitted_ms <= running.started_ms <= running.first_output_ms
    worker.finish()
    ended = jobs[1].status()
    assert ended.state.terminal
    assert (ended.state, ended.events) == (JobState.SUCCEEDED, 4)
    assert ended.finished_ms >= ended.first_output_ms


def test_cancel_ends_what_waits_and_flags_what_runs(client, worker):
    running, waiting = client.submit("text", prompt="p", qos="realtime"), client.submit("text", prompt="p")
    worker.claim()
    assert waiting.cancel() is JobState.CANCELLED
    assert waiting.cancel() is JobState.CANCELLED
    assert waiting.result(timeout=1).state is OutcomeState.CANCELLED
    assert [event.kind for event in waiting.stream()] == ["queued", "cancelled"]
    assert running.cancel() is JobState.CANCELLING
    assert running.status().state is JobState.CANCELLING
    assert worker.say("x") == "cancelling"
    worker.finish(OutcomeState.CANCELLED)
    assert running.cancel() is JobState.CANCELLED
    assert worker.redis.llen("ccs.text:1") == 0


def test_an_unknown_job_is_not_a_waiting_one(client):
    job = client.job("no-such-job")
    for ask in (job.status, job.cancel, job.result, lambda: next(job.stream())):
        with pytest.raises(NotFoundError, match="there is no job 'no-such-job', or its record has expired"):
            ask()


def test_a_plain_task_on_our_queue_is_no_job(client, worker):
    worker.redis.hset("ccs:job:task", mapping={"kind": "task", "state": "waiting"})
    with pytest.raises(NotFoundError):
        client.job("task").status()


def test_queues_count_what_waits_and_runs(client, worker):
    for modality, options in (("text", {}), ("text", {}), ("vision", {"images": [b"x"]})):
        client.submit(modality, prompt="p", **options)
    worker.claim()
    report = client.queues()
    assert [(q.name, q.waiting, q.tickets, q.running) for q in report.queues] == [
        ("ccs.text", 1, 1, 1),
        ("ccs.vision", 1, 1, 0),
        ("ccs.audio", 0, 0, 0),
        ("ccs.fusion", 0, 0, 0),
    ]
    assert (report.waiting, report.running, report.delayed) == (2, 1, 0)


def test_workers_are_those_that_live_and_report(client, worker):
    assert client.workers() == ()
    now_ms = int(worker.redis.time()[0]) * 1000
    worker.redis.zadd(
        "ccs:workers", {"b": now_ms + 9000, "a": now_ms + 5000, "dead": now_ms - 1, "mute": 9e15}
    )
    for name, report in {"a": json.dumps({"slots": 4}), "b": "no JSON", "dead": "{}"}.items():
        worker.redis.set(f"ccs:worker:{name}", report, ex=60)
    first, second = client.workers()
    assert (first.name, first.report, second.name, second.report) == ("a", {"slots": 4}, "b", {})
    assert 3.0 < first.alive_for_s <= 5.0


def test_ping_takes_the_time_of_a_round_trip(client):
    assert 0 < client.ping() < 1


def test_scripts_lost_by_the_server_are_loaded_again(client, worker):
    client.submit("text", prompt="p")
    worker.redis.script_flush()
    job = client.submit("text", prompt="p")
    worker.redis.script_flush()
    assert job.cancel() is JobState.CANCELLED
    worker.redis.script_flush()
    assert len(client.submit_many([{"modality": "text", "prompt": "p"}] * 3)) == 3


def test_a_client_survives_a_fork(client):
    client.submit("text", prompt="p")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, client.submit("text", prompt="p").id.encode())
        os._exit(0)
    mine = client.submit("text", prompt="p")
    os.waitpid(child, 0)
    theirs = os.read(reading, 64).decode()
    os.close(reading)
    os.close(writing)
    assert mine.id != theirs
    assert client.queues().waiting == 3
    assert client.job(theirs).status().state is JobState.WAITING


def test_threads_share_a_client(client):
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda number: client.submit("text", prompt=str(number)).id, range(400)))
    assert len(ids) == client.queues().waiting == 400


def test_nothing_is_left_without_a_life(client, worker):
    # What waits stands in sets that its outcome, or a sweep, empties.
    for job in [client.submit("vision", images=[b"x"], idempotency_key=str(n)) for n in range(4)][:2]:
        job.cancel()
    for _ in range(2):
        worker.claim("ccs.vision")
        worker.finish()
    assert leaked_keys(worker.redis) == []
    assert client.queues().waiting == 0
