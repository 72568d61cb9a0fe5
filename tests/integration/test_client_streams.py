"""Streams and results through the client: whenever one joins and whatever breaks, the one sequence."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ccs_broker.client import Client, JobState
from ccs_broker.contract import EventKind, OutcomeState
from ccs_broker.errors import (
    NotFoundError,
    QueueUnavailableError,
    StreamExpiredError,
    WaitTimeoutError,
)
from ccs_broker.ledger import Append
from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from ccs_broker.settings import LedgerSettings
from ccs_broker.streams import event_from_bell
from tests.helpers import wait_until
from tests.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.redis

NUMBERS = [str(number) for number in range(1, 21)]
ODD_TEXTS = [
    "é日本🙂",
    '"quoted" \\ / \n\r\t',
    "\0\x1f\x7f\u2028",
    "a" * 70_000,
    " ",
    "</script>",
    '{"kind":"failed"}',
]


@pytest.fixture
def client(redis_url):
    with Client(redis_url) as client:
        yield client


@pytest.fixture
def worker(redis_url):
    with ScriptedWorker(redis_url) as worker:
        yield worker


def texts_of(events):
    return [event.text for event in events if event.kind is EventKind.DELTA]


def assert_whole(events, texts=NUMBERS):
    assert [event.seq for event in events] == list(range(1, len(texts) + 4))
    kinds = [event.kind for event in events]
    assert kinds == ["queued", "started", *["delta"] * len(texts), "succeeded"]
    assert texts_of(events) == texts
    assert [event.terminal for event in events].count(True) == 1


def subscriptions(server):
    return {name.decode(): count for name, count in server.pubsub_numsub(*server.pubsub_channels("*"))}


def when_subscribed(server, job, count=1):
    wait_until(lambda: subscriptions(server).get(f"ccs:events:{job.id}", 0) >= count, 5, "the subscription")


def test_early_middle_and_late_subscribers_see_the_same(client, worker):
    job = client.submit("text", prompt="p")
    with ThreadPoolExecutor(3) as pool:
        early = pool.submit(lambda: list(job.stream(timeout=10)))
        when_subscribed(worker.redis, job)
        worker.claim()
        worker.say(*NUMBERS[:10])
        middle = [pool.submit(lambda: list(client.job(job.id).stream(timeout=10))) for _ in range(2)]
        when_subscribed(worker.redis, job, 3)
        worker.say(*NUMBERS[10:])
        worker.finish()
        late = list(job.stream(timeout=10))
        assert early.result(5) == middle[0].result(5) == middle[1].result(5) == late
    assert_whole(late)
    assert "".join(texts_of(late)) == job.result().text
    assert subscriptions(worker.redis) == {}


def test_a_burst_without_delay_loses_nothing(client, worker):
    for _ in range(20):
        job = client.submit("text", prompt="p")
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(lambda job=job: list(job.stream(timeout=10)))
            worker.claim()
            for number in NUMBERS:
                worker.say(number)
            worker.finish()
            assert_whole(stream.result(5))


@pytest.mark.parametrize("after", [0, 1, 7, 22, 23, 24])
def test_a_stream_goes_on_after_any_event(client, worker, after):
    job = client.submit("text", prompt="p")
    worker.run(*NUMBERS)
    assert [event.seq for event in job.stream(after=after)] == list(range(after + 1, 24))


def test_texts_arrive_byte_for_byte_by_bell_and_by_log(client, worker):
    job = client.submit("text", prompt="p")
    with ThreadPoolExecutor(1) as pool:
        by_bell = pool.submit(lambda: list(job.stream(timeout=10)))
        when_subscribed(worker.redis, job)
        worker.claim()
        for text in ODD_TEXTS:
            worker.say(text)
        worker.finish()
        assert_whole(by_bell.result(5), ODD_TEXTS)
    assert list(job.stream()) == by_bell.result()
    assert job.result().text == "".join(ODD_TEXTS)


def test_bells_and_log_entries_are_the_same_events(client, worker):
    job = client.submit("text", prompt="p")
    with worker.redis.pubsub() as pubsub:
        pubsub.subscribe(f"ccs:events:{job.id}")
        worker.claim()
        worker.append(
            [
                Append(
                    kind=EventKind.PROGRESS,
                    data=json.dumps({"window": 1, "é": [1.5, None, "x"]}),
                    token_ids=(1, 2),
                )
            ]
        )
        worker.say(*ODD_TEXTS)
        worker.finish(OutcomeState.SUCCEEDED)
        heard = []
        while not (heard and heard[-1].terminal):
            message = pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
            heard += [event_from_bell(message["data"])] if message else []
    assert heard == list(job.stream(after=1))
    assert heard[1].data == {"window": 1, "é": [1.5, None, "x"]}


def test_a_killed_subscription_leaves_no_hole(client, worker):
    job = client.submit("text", prompt="p")
    stream = job.stream(timeout=10)
    assert next(stream).kind is EventKind.QUEUED
    worker.claim()
    worker.say("one")
    assert [next(stream).seq, next(stream).text] == [2, "one"]
    for round_ in range(3):
        assert worker.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
        worker.say(f"lost1-{round_}", f"lost2-{round_}")
        assert [next(stream).text, next(stream).text] == [f"lost1-{round_}", f"lost2-{round_}"]
        worker.say(f"after-{round_}")
        assert next(stream).text == f"after-{round_}"
    worker.finish()
    assert [event.kind for event in stream] == ["succeeded"]


def test_a_slow_reader_whose_buffer_is_emptied_gets_all_20000(private_server):
    with ScriptedWorker(private_server.url) as worker, Client(private_server.url) as client:
        worker.redis.config_set("client-output-buffer-limit", "pubsub 262144 131072 5")
        job = client.submit("text", prompt="p")
        texts = [f"{number:06d}" + "x" * 200 for number in range(20_000)]
        stream = job.stream(timeout=20)
        next(stream)
        worker.claim()
        for start in range(0, len(texts), 100):
            worker.say(*texts[start : start + 100])
        assert subscriptions(worker.redis) == {}, "the server was to drop the slow reader"
        worker.finish()
        assert texts_of(stream) == texts


def test_a_silent_bell_is_covered_by_the_log(client, worker):
    job = client.submit("text", prompt="p")
    stream = job.stream(timeout=10)
    next(stream)
    # Appended without a bell, as if the network had swallowed it.
    worker.redis.xadd(f"ccs:log:{job.id}", {"k": "delta", "n": 1, "t": 5, "x": "unheard"}, id="2-0")
    worker.redis.hset(f"ccs:job:{job.id}", "seq", 2)
    begun = time.monotonic()
    assert next(stream).text == "unheard"
    assert time.monotonic() - begun < 2


def test_silence_is_told_and_the_job_goes_on(client, worker):
    job = client.submit("text", prompt="p")
    with pytest.raises(WaitTimeoutError, match=r"within 0\.2 s; the job goes on"):
        list(job.stream(timeout=0.2))
    with pytest.raises(WaitTimeoutError):
        job.result(timeout=0.2)
    worker.run("x")
    assert job.result(timeout=0).text == "x"
    assert [event.seq for event in job.stream(timeout=0)] == [1, 2, 3, 4]


def test_an_expired_log_is_told_with_the_outcome(redis_url):
    short = LedgerSettings(log_ttl_s=1)
    with Client(redis_url) as client, ScriptedWorker(redis_url, short) as worker:
        job = client.submit("text", prompt="p")
        worker.run("the text")
        wait_until(lambda: not worker.redis.exists(f"ccs:log:{job.id}"), 5, "the log to expire")
        with pytest.raises(StreamExpiredError) as caught:
            next(job.stream())
        assert (caught.value.outcome.state, caught.value.outcome.text) == ("succeeded", "the text")
        assert job.result(timeout=1) == caught.value.outcome
        assert list(job.stream(after=4)) == []


def test_a_record_that_has_expired_is_not_a_waiting_job(redis_url):
    with Client(redis_url, ledger=LedgerSettings(job_ttl_s=1, log_ttl_s=1)) as client:
        job = client.submit("text", prompt="p")
        job.cancel()
        assert job.status().state is JobState.CANCELLED
        wait_until(lambda: not client._link.ask((("EXISTS", f"ccs:job:{job.id}"),))[0], 5, "the record to go")
        for ask in (job.status, job.result, lambda: next(job.stream())):
            with pytest.raises(NotFoundError):
                ask()


def test_a_job_that_ends_while_it_waits_ends_its_streams(client, worker):
    job = client.submit("text", prompt="p", deadline_s=0.05)
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(lambda: [event.kind for event in job.stream(timeout=10)])
        result = pool.submit(lambda: job.result(timeout=10))
        wait_until(lambda: worker.ledger.sweep().expired or job.status().state.terminal, 5)
        assert stream.result(5) == ["queued", "expired"]
        outcome = result.result(5)
    assert (outcome.state, outcome.error.code, outcome.attempts) == ("expired", "DEADLINE_EXCEEDED", 0)
    assert outcome.timings.started_s is None
    assert outcome.timings.finished_s >= 0.05


def test_the_text_of_a_job_that_a_script_ended_is_taken_from_the_log(redis_url):
    with (
        Client(redis_url) as client,
        ScriptedWorker(redis_url, LedgerSettings(lease_s=0.05, most_losses=1)) as worker,
    ):
        job = client.submit("text", prompt="p")
        worker.claim()
        worker.say("begun ", "and ")
        wait_until(lambda: worker.ledger.sweep().lost, 5, "the lease to end")
        outcome = job.result(timeout=1)
    assert (outcome.state, outcome.text, outcome.error.code) == ("quarantined", "begun and ", "WORKER_LOST")
    assert (outcome.attempts, outcome.worker) == (1, "scripted")


def test_an_outcome_has_its_times_from_the_broker(client, worker):
    job = client.submit("text", prompt="p")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(job.result)
        worker.claim()
        worker.say("x")
        worker.finish(model="smol", finish_reason="stop", worker="w@h")
        outcome = result.result(5)
    assert (outcome.model, outcome.finish_reason, outcome.worker, outcome.attempts) == (
        "smol",
        "stop",
        "w@h",
        1,
    )
    times = outcome.timings
    assert 0 <= times.started_s <= times.first_output_s <= times.finished_s < 5


def test_streams_end_their_subscriptions_also_when_dropped(client, worker):
    jobs = [client.submit("text", prompt="p") for _ in range(3)]
    closed, dropped, failed = (job.stream(timeout=0.1) for job in jobs)
    for stream in (closed, dropped, failed):
        next(stream)
    assert len(subscriptions(worker.redis)) == 3
    closed.close()
    del dropped
    with pytest.raises(WaitTimeoutError):
        list(failed)
    wait_until(lambda: subscriptions(worker.redis) == {}, 5, "the subscriptions to end")


def test_submitting_opens_no_subscription(client, worker):
    client.submit("text", prompt="p")
    assert subscriptions(worker.redis) == {}
    assert (
        worker.redis.info("clients")["pubsub_clients"] == 0
        if "pubsub_clients" in worker.redis.info()
        else True
    )


def test_a_hundred_streams_at_once(client, worker):
    jobs = client.submit_many([{"modality": "text", "prompt": "p"}] * 100)
    with ThreadPoolExecutor(100) as pool:
        streams = [pool.submit(lambda job=job: list(job.stream(timeout=20))) for job in jobs]
        wait_until(lambda: len(subscriptions(worker.redis)) == 100, 10, "all subscriptions")
        for _ in jobs:
            worker.run(*NUMBERS)
        for stream in streams:
            assert_whole(stream.result(10))


def test_a_server_that_restarts_under_a_stream_costs_nothing(server_kind):
    binary = server_binaries()[server_kind]
    durable = {"appendfsync": "always"}
    with (
        EmbeddedServer(binary=binary, appendonly=True, config=durable) as server,
        ScriptedWorker(server.url) as worker,
        Client(server.url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        job = client.submit("text", prompt="p")
        worker.claim()
        worker.say("before")
        stream, result = job.stream(timeout=20), pool.submit(job.result)
        assert [next(stream).text for _ in range(3)] == ["", "", "before"]
        rest = pool.submit(lambda: texts_of(stream))
        server.kill()
        server.restart()
        worker.say("after")
        worker.finish()
        assert rest.result(10) == ["after"]
        assert result.result(10).text == "beforeafter"


def test_a_server_that_stays_away_ends_the_stream(private_server):
    with Client(private_server.url, timeout_s=1.0) as client:
        job = client.submit("text", prompt="p")
        stream = job.stream(timeout=None)
        next(stream)
        private_server.kill()
        begun = time.monotonic()
        with pytest.raises(QueueUnavailableError):
            next(stream)
        assert time.monotonic() - begun < 3
