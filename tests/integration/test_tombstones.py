"""Cancel before delivery: an id that isn't known leaves a tombstone, at which publishing it ends it; no worker runs."""

from __future__ import annotations

import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from celery.exceptions import TaskRevokedError
from click.testing import CliRunner

from ccs_broker.cli.group import ccs
from ccs_broker.client import Client, JobState
from ccs_broker.contract import OutcomeState
from ccs_broker.errors import NoSuitableWorkerError, NotFoundError, QueueFullError
from ccs_broker.ledger import Ledger, PublishStatus
from ccs_broker.settings import LedgerSettings
from ccs_broker.transport import celery_settings
from ccs_broker.transport.intake import Intake
from tests.helpers import wait_until
from tests.scripted_worker import ScriptedWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccs_broker.client.core import Submission
    from ccs_broker.ledger import Entry

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_key_leaks")]

TOMBS = "ccs:tombstones"
SETTINGS = LedgerSettings()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        yield found


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as found:
        yield found


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as found:
        yield Ledger(found)


@pytest.fixture(params=["transport", "intake"])
def producer(request: pytest.FixtureRequest, redis_url: str) -> Iterator[tuple[Celery, Callable[[], object]]]:
    """A Celery producer and what brings its messages into the ledger."""
    app = Celery("producer", broker=redis_url, backend=redis_url, set_as_current=False)
    if request.param == "transport":
        app.conf.update(celery_settings())
        yield app, lambda: None
    else:
        with redis.Redis.from_url(redis_url) as found:
            yield app, Intake(Ledger(found), SETTINGS).run
    # A result that is dropped once its server is gone looks for it for twenty seconds.
    gc.collect()
    app.close()


def prepared(client: Client, modality: str = "text", **options: object) -> Submission:
    """A job of our client that is about to be sent."""
    return client._core.prepare(modality, {"prompt": "p", **options})


def send(client: Client, submission: Submission) -> Any:
    return client.job(client._run(client._core.submit(submission)))


def cancel_unknown(client: Client, job_id: str) -> None:
    with pytest.raises(
        NotFoundError, match=r"expired; should a job still arrive under this id, it will be cancelled"
    ):
        client.job(job_id).cancel()


def now_ms(raw: redis.Redis) -> int:
    seconds, micros = raw.time()
    return seconds * 1000 + micros // 1000


def nothing_waits(raw: redis.Redis) -> bool:
    """No ticket, nothing waiting, nothing delayed, nothing on a plain list, no lifetime to be watched."""
    return not [
        key
        for key in raw.keys("ccs*")
        if key.startswith(("ccs.", "ccs:waiting", "ccs:delayed", "ccs:expiry"))
    ]


def racing(pool: ThreadPoolExecutor, *actions: Callable[[], object]) -> None:
    """Run them at once, each in a thread of its own, and raise what they raise."""
    gate = threading.Barrier(len(actions), timeout=10)

    def run(action: Callable[[], object]) -> None:
        gate.wait()
        action()

    for future in [pool.submit(run, action) for action in actions]:
        future.result(timeout=20)


def foreign(job_id: str, **options: object) -> bytes:
    """A message as a plain producer in any language pushes it."""
    return json.dumps({
        "body": json.dumps([[{"prompt": "p", **options}], {}, {}]), "content-encoding": "utf-8",
        "content-type": "application/json", "headers": {"task": "ccs.run", "id": job_id}, "properties": {},
    }).encode()  # fmt: skip


def test_a_job_of_our_client_ends_as_it_comes(client: Client, raw: redis.Redis) -> None:
    submission = prepared(client, "vision", images=[b"picture"], idempotency_key="k")
    cancel_unknown(client, submission.entry.id)
    job = send(client, submission)
    assert job.result(timeout=1).state is OutcomeState.CANCELLED
    assert [(event.seq, event.kind, event.data) for event in job.stream(timeout=1)] == [
        (1, "queued", {}),
        (2, "cancelled", {"stage": "waiting"}),
    ]
    assert nothing_waits(raw)
    assert raw.exists(TOMBS, *raw.keys("ccs:refs:*")) == 0
    assert raw.hmget(f"ccs:job:{job.id}", "job", "msg") == [None, None]
    (blob,) = raw.keys("ccs:blob:*")
    most = {f"ccs:job:{job.id}": SETTINGS.job_ttl_s, f"ccs:log:{job.id}": SETTINGS.log_ttl_s, blob: 60}
    assert {key: 0 < raw.ttl(key) <= life for key, life in most.items()} == dict.fromkeys(most, True)
    # A repetition, by id or by key, finds the job as it ended.
    assert send(client, submission).id == job.id
    assert client.submit("vision", prompt="p", images=[b"picture"], idempotency_key="k").id == job.id
    assert job.cancel() is JobState.CANCELLED
    assert len(list(job.stream(timeout=1))) == 2
    assert nothing_waits(raw)


def test_in_a_bulk_only_those_end_that_were_cancelled(
    client: Client, ledger: Ledger, raw: redis.Redis
) -> None:
    submissions = [prepared(client) for _ in range(5)]
    cancel_unknown(client, submissions[3].entry.id)
    found = client._run(client._core.submit_many(submissions))
    states = [client.job(job_id).status().state for job_id in found]
    assert states == [JobState.WAITING] * 3 + [JobState.CANCELLED, JobState.WAITING]
    assert (raw.llen("ccs.text:1"), raw.zcard("ccs:waiting:ccs.text"), raw.exists(TOMBS)) == (4, 4, 0)
    assert [ledger.cancel(job_id) for job_id in found] == ["cancelled"] * 5


@pytest.mark.parametrize("task", ["ccs.run", "team.task"])
@pytest.mark.parametrize("options", [{}, {"countdown": 60}], ids=["now", "later"])
def test_what_comes_through_celery_ends_as_if_revoked(
    producer: tuple[Celery, Callable[[], object]],
    client: Client,
    raw: redis.Redis,
    task: str,
    options: dict[str, Any],
) -> None:
    app, bring_in = producer
    cancel_unknown(client, "cancelled-first")
    sent = app.send_task(task, args=[{"prompt": "p"}], queue="ccs.text", task_id="cancelled-first", **options)
    other = app.send_task(task, args=[{"prompt": "p"}], queue="ccs.text")
    bring_in()
    with pytest.raises(TaskRevokedError):
        sent.get(timeout=5)
    assert sent.state == "REVOKED"
    assert 0 < raw.ttl("celery-task-meta-cancelled-first") <= SETTINGS.job_ttl_s
    assert raw.zcard("ccs:waiting:ccs.text") == raw.llen("ccs.text:1") == 1
    assert raw.zrange("ccs:waiting:ccs.text", 0, -1) == [other.id]
    assert Ledger(raw).cancel(other.id) == "cancelled"
    assert nothing_waits(raw)
    if task == "ccs.run":
        assert [event.kind for event in client.job(sent.id).stream(timeout=1)] == ["queued", "cancelled"]
        assert raw.exists(TOMBS) == 0


def test_a_plain_task_stays_cancelled_however_often_it_is_published(
    producer: tuple[Celery, Callable[[], object]], client: Client, raw: redis.Redis
) -> None:
    """It has no record: a link that is applied again, or a publish whose reply was lost, must not run it."""
    app, bring_in = producer
    cancel_unknown(client, "twice")
    for _ in range(2):
        sent = app.send_task("team.task", queue="ccs.text", task_id="twice")
        bring_in()
        with pytest.raises(TaskRevokedError):
            sent.get(timeout=5)
    assert nothing_waits(raw)
    assert raw.exists("ccs:job:twice") == 0
    assert raw.zscore(TOMBS, "twice") is not None


def test_a_foreign_job_that_would_be_refused_ends_as_cancelled(
    client: Client, ledger: Ledger, raw: redis.Redis
) -> None:
    cancel_unknown(client, "not-valid")
    raw.lpush("ccs.text", foreign("not-valid", max_new_tokens=-1))
    assert Intake(ledger, SETTINGS).run() == 1
    assert client.job("not-valid").result(timeout=1).state is OutcomeState.CANCELLED
    assert json.loads(raw.get("celery-task-meta-not-valid"))["status"] == "REVOKED"


def test_what_is_refused_leaves_the_tombstone(client: Client, raw: redis.Redis) -> None:
    submission = prepared(client, model="absent")
    cancel_unknown(client, submission.entry.id)
    raw.zadd("ccs:models:text", {"present": 9e15})
    raw.expire("ccs:models:text", 60)
    with pytest.raises(NoSuitableWorkerError):
        send(client, submission)
    raw.zadd("ccs:models:text", {"absent": 9e15})
    assert send(client, submission).result(timeout=1).state is OutcomeState.CANCELLED


def test_cancelling_what_is_published_leaves_no_tombstone(
    redis_url: str, client: Client, raw: redis.Redis
) -> None:
    with ScriptedWorker(redis_url) as worker:
        running, waiting = (
            client.submit("text", prompt="p", qos="realtime"),
            client.submit("text", prompt="p"),
        )
        worker.claim()
        assert worker.ledger.cancel(running.id, "unstarted") == "running"
        assert running.status().state is JobState.RUNNING
        assert worker.ledger.cancel(waiting.id, "unstarted") == "cancelled"
        assert worker.ledger.cancel("gone", "waiting") == "missing"
        assert running.cancel() is JobState.CANCELLING
        worker.finish(OutcomeState.CANCELLED)
    assert raw.exists(TOMBS) == 0
    assert nothing_waits(raw)


def test_a_tombstone_counts_for_its_time(client: Client, ledger: Ledger, raw: redis.Redis) -> None:
    late = prepared(client)
    cancel_unknown(client, late.entry.id)
    life_ms = raw.zscore(TOMBS, late.entry.id) - now_ms(raw)
    assert 0 < life_ms <= SETTINGS.tombstone_ttl_s * 1000
    assert SETTINGS.tombstone_ttl_s - 5 < raw.ttl(TOMBS) <= SETTINGS.tombstone_ttl_s
    raw.zadd(TOMBS, {late.entry.id: now_ms(raw) - 1, "older": 1})
    assert send(client, late).status().state is JobState.WAITING
    assert ledger.cancel("another") == "missing"
    assert raw.zrange(TOMBS, 0, -1) == ["another"]
    assert Ledger(raw, LedgerSettings(tombstone_ttl_s=1)).cancel("brief") == "missing"
    wait_until(lambda: raw.exists(TOMBS) == 0, 5)
    assert ledger.cancel(late.entry.id) == "cancelled"


def test_of_too_many_the_newest_are_kept(raw: redis.Redis) -> None:
    ledger = Ledger(raw, LedgerSettings(tombstones=3))
    for number in range(5):
        begun_ms = now_ms(raw)
        assert ledger.cancel(f"job-{number}") == "missing"
        # Their order is that of the milliseconds in which they came.
        wait_until(lambda begun_ms=begun_ms: now_ms(raw) > begun_ms + 1)
    assert raw.zrange(TOMBS, 0, -1) == ["job-2", "job-3", "job-4"]


def test_the_command_tells_a_typo_and_what_it_means(redis_url: str, raw: redis.Redis) -> None:
    assert CliRunner().invoke(ccs, ["cancel", "a b", "--url", redis_url]).exit_code in {1, 2}
    assert raw.exists(TOMBS) == 0
    shown = CliRunner().invoke(ccs, ["cancel", "typo", "--url", redis_url])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.startswith("error: NOT_FOUND: there is no job 'typo'")
    assert "should a job still arrive under this id, it will be cancelled" in shown.stderr
    assert raw.zrange(TOMBS, 0, -1) == ["typo"]


@pytest.mark.parametrize("way", ["client", "intake"])
def test_of_a_cancel_and_a_publish_at_once_neither_is_lost(
    redis_url: str, client: Client, raw: redis.Redis, way: str
) -> None:
    entries = [replace(prepared(client).entry, id=f"race-{number}") for number in range(150)]
    answers: list[str] = []
    with (
        redis.Redis.from_url(redis_url) as one,
        redis.Redis.from_url(redis_url) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        producer, canceller = Ledger(one), Ledger(two)
        intake = Intake(producer, SETTINGS)

        def publish(entry: Entry, trips: int) -> None:
            for _ in range(trips):
                one.ping()
            if way == "client":
                assert producer.publish(entry).status is PublishStatus.OK
            else:
                intake.run()

        def cancel(entry: Entry, trips: int) -> None:
            for _ in range(trips):
                two.ping()
            answers.append(canceller.cancel(entry.id))

        for number, entry in enumerate(entries):
            if way == "intake":
                one.lpush("ccs.text", foreign(entry.id))
            # Sometimes one begins earlier, sometimes the other; an intake takes some round trips itself.
            racing(pool, partial(publish, entry, number % 7), partial(cancel, entry, number % 11))
            job = client.job(entry.id)
            assert [event.kind for event in job.stream(timeout=1)] == ["queued", "cancelled"]
            assert job.result(timeout=1).state is OutcomeState.CANCELLED
    assert nothing_waits(raw)
    assert raw.exists(TOMBS) == 0
    assert len(answers) == len(entries)
    assert set(answers) == {"missing", "cancelled"}, "every race had the same winner"


def test_a_full_server_still_remembers_cancels_and_takes_no_job(private_server: Any) -> None:
    with Client(private_server.url) as client, redis.Redis.from_url(private_server.url) as raw:
        submission, other = prepared(client), prepared(client)
        raw.config_set("maxmemory", "1")
        cancel_unknown(client, submission.entry.id)
        for each in (submission, other):
            with pytest.raises(QueueFullError):
                send(client, each)
        assert raw.exists(f"ccs:job:{submission.entry.id}") == 0
        raw.config_set("maxmemory", "0")
        assert send(client, submission).result(timeout=1).state is OutcomeState.CANCELLED
        assert send(client, other).status().state is JobState.WAITING


def test_publishing_reads_one_key_more_and_no_other(client: Client, raw: redis.Redis) -> None:
    """The price of tombstones for everybody who doesn't cancel."""
    client.submit("text", prompt="warm up")
    with raw.monitor() as monitor:
        job = client.submit("text", prompt="p")
        raw.echo("the end")
        seen = []
        for entry in monitor.listen():
            if "the end" in entry["command"]:
                break
            seen.append(entry["command"])
    assert [command for command in seen if TOMBS in command and not command.startswith("EVALSHA")] == [
        f"ZSCORE {TOMBS} {job.id}"
    ]
    for waiting in raw.zrange("ccs:waiting:ccs.text", 0, -1):
        client.job(waiting).cancel()
