"""The asynchronous client: the same answers as its twin, on one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing

import pytest

from ccs_broker.client import AsyncClient, JobState
from ccs_broker.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    QueueFullError,
    QueueUnavailableError,
    WaitTimeoutError,
)
from tests.helpers import wait_until
from tests.scripted_worker import ScriptedWorker

TEXTS = [str(number) for number in range(1, 21)]


@pytest.fixture
def worker(redis_url):
    with ScriptedWorker(redis_url) as worker:
        yield worker


def with_client(url, scene, **options):
    """Run ``scene(client)`` on a loop of its own; what it leaves running is an error."""

    async def main():
        async with AsyncClient(url, **options) as client:
            await scene(client)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    asyncio.run(main(), debug=False)


async def collect(stream):
    return [event async for event in stream]


async def until(predicate):
    await asyncio.to_thread(wait_until, predicate, 5)


def channels(worker):
    return len(worker.redis.pubsub_channels("ccs:events:*"))


@pytest.mark.redis
def test_submit_stream_and_result(redis_url, worker):
    async def scene(client):
        job = await client.submit("text", prompt="p")
        assert (await job.status()).position == 0
        early = asyncio.create_task(collect(job.stream()))
        result = asyncio.create_task(client.job(job.id).result())
        await until(lambda: worker.redis.pubsub_numsub(f"ccs:events:{job.id}")[0][1] == 2)
        await asyncio.to_thread(worker.run, *TEXTS)
        events = await early
        assert [event.seq for event in events] == list(range(1, 24))
        assert "".join(event.text for event in events) == "".join(TEXTS) == (await result).text
        assert await collect(job.stream()) == events
        assert await collect(job.stream(after=20)) == events[20:]
        assert await job.cancel() is JobState.SUCCEEDED

    with_client(redis_url, scene)


@pytest.mark.redis
def test_media_bulk_and_refusals(redis_url, worker, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"sound")

    async def scene(client):
        job = await client.submit("audio", audio=tmp_path / "a.wav", idempotency_key="k")
        assert (await client.submit("audio", audio=b"sound", idempotency_key="k")).id == job.id
        with pytest.raises(ConflictError):
            await client.submit("audio", audio=b"other", idempotency_key="k")
        with pytest.raises(InvalidInputError):
            await client.submit("audio", audio=tmp_path / "missing.wav")
        jobs = await client.submit_many([{"modality": "text", "prompt": str(n)} for n in range(600)])
        assert [(await jobs[n].status()).position for n in (0, 299, 599)] == [0, 299, 599]
        assert (await client.queues()).waiting == 601
        assert await client.workers() == ()
        assert await client.ping() > 0
        worker.redis.script_flush()
        assert await jobs[0].cancel() is JobState.CANCELLED

    with_client(redis_url, scene)
    assert worker.redis.zcard("ccs:waiting:ccs.audio") == 1


def test_unknown_jobs_and_silence(redis_url):
    async def scene(client):
        job = client.job("no-such-job")
        for ask in (job.status, job.cancel, job.result, lambda: collect(job.stream())):
            with pytest.raises(NotFoundError):
                await ask()
        waiting = await client.submit("text", prompt="p")
        with pytest.raises(WaitTimeoutError):
            await collect(waiting.stream(timeout=0.1))
        with pytest.raises(WaitTimeoutError):
            await waiting.result(timeout=0.1)

    with_client(redis_url, scene)


@pytest.mark.redis
def test_a_killed_subscription_leaves_no_hole(redis_url, worker):
    async def scene(client):
        job = await client.submit("text", prompt="p")
        worker.claim()
        async with aclosing(job.stream(timeout=10)) as stream:
            assert [(await anext(stream)).seq for _ in range(2)] == [1, 2]
            for _ in range(3):
                assert worker.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
                worker.say("lost1", "lost2")
                assert [(await anext(stream)).text for _ in range(2)] == ["lost1", "lost2"]
                worker.say("after")
                assert (await anext(stream)).text == "after"
        await until(lambda: channels(worker) == 0)

    with_client(redis_url, scene)


def test_a_reader_that_waits_loses_nothing_between_its_waits(redis_url, worker):
    """Each wait for the bell is given up after a second, and taken up again."""

    async def scene(client):
        job = await client.submit("text", prompt="p")
        worker.claim()
        stream = asyncio.create_task(collect(job.stream(timeout=10)))
        for text in TEXTS:
            worker.say(text * 5000)
            await asyncio.sleep(0.06)
        worker.finish()
        assert [event.text for event in await stream][2:-1] == [text * 5000 for text in TEXTS]

    with_client(redis_url, scene)


def test_a_cancelled_reader_ends_its_subscription_and_harms_no_other(redis_url, worker):
    async def scene(client):
        jobs = [await client.submit("text", prompt="p") for _ in range(20)]
        tasks = [asyncio.create_task(collect(job.stream())) for job in jobs]
        results = [asyncio.create_task(job.result()) for job in jobs]
        await until(lambda: channels(worker) == 20)
        for task in tasks[1:] + results[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], *results[1:], return_exceptions=True)
        await until(lambda: channels(worker) == 1)
        await asyncio.to_thread(worker.run, "x")
        assert [event.kind for event in await tasks[0]] == ["queued", "started", "delta", "succeeded"]
        assert (await results[0]).text == "x"

    with_client(redis_url, scene)


def test_a_call_cancelled_between_request_and_reply_leaves_no_reply_behind(redis_url):
    async def scene(client):
        await client.ping()
        for delay in range(40):
            task = asyncio.create_task(client.submit("text", prompt="p"))
            for _ in range(delay % 8):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await client.workers() == ()

    with_client(redis_url, scene)


def test_many_streams_on_one_loop(redis_url, worker):
    async def scene(client):
        jobs = await client.submit_many([{"modality": "text", "prompt": "p"}] * 200)
        streams = [asyncio.create_task(collect(job.stream(timeout=20))) for job in jobs]
        await until(lambda: channels(worker) == 200)

        def work():
            for _ in jobs:
                worker.run(*TEXTS)

        await asyncio.to_thread(work)
        for events in await asyncio.gather(*streams):
            assert [event.text for event in events][2:-1] == TEXTS

    with_client(redis_url, scene)


def test_a_server_that_is_down_frozen_or_full(private_server):
    url = private_server.url

    async def frozen(client):
        await client.ping()
        os.kill(private_server.pid, signal.SIGSTOP)
        try:
            job = client.job("some-job")
            calls = [
                client.submit("text", prompt="p"), client.submit("vision", images=[b"x" * 20_000_000]),
                collect(job.stream()), job.result(), job.status(), job.cancel(), client.queues(), client.ping(),
            ]  # fmt: skip
            begun = time.monotonic()
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(error) for error in found] == [QueueUnavailableError] * len(calls)
            assert time.monotonic() - begun < 2.0
            assert any(error.maybe_accepted for error in found)
        finally:
            os.kill(private_server.pid, signal.SIGCONT)

    async def full(client):
        await client.submit("text", prompt="p")
        with ScriptedWorker(url) as worker:
            worker.redis.config_set("maxmemory", "1")
            with pytest.raises(QueueFullError):
                await client.submit("text", prompt="p")
            worker.redis.config_set("maxmemory", "0")
        before = (await client.queues()).waiting
        await asyncio.to_thread(private_server.restart)
        job = await client.submit("text", prompt="p")
        assert (before, (await job.status()).position) == (1, 0)

    async def down(client):
        await asyncio.to_thread(private_server.kill)
        begun = time.monotonic()
        for ask in (
            client.ping,
            lambda: client.submit("text", prompt="p"),
            lambda: collect(client.job("x").stream()),
        ):
            with pytest.raises(QueueUnavailableError, match="could not be reached") as caught:
                await ask()
            assert not caught.value.maybe_accepted
        assert time.monotonic() - begun < 1.0

    with_client(url, frozen, timeout_s=1.0)
    with ScriptedWorker(url) as worker:
        worker.redis.flushall()
    with_client(url, full, timeout_s=1.0)
    with_client(url, down, timeout_s=1.0)
