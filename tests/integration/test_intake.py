"""Foreign producers: a plain Celery app, another language, and whatever else lands on the queues' lists."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery, chain, chord
from celery.exceptions import TaskRevokedError

from ccs_broker.errors import InvalidInputError
from ccs_broker.transport import celery_settings
from tests.helpers import wait_until
from tests.workers import RunningWorker, simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.redis

CANARY = "canary-7f3a"


@pytest.fixture
def sim_worker(redis_url: str, tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker with simulated models."""
    with worker(redis_url, simulated_models(tmp_path), options=("--log-level", "debug")) as running:
        yield running


@pytest.fixture
def stock(redis_url: str) -> Iterator[Celery]:
    """A producer that knows nothing of us."""
    app = Celery("producer", broker=redis_url, backend=redis_url, set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def ours(redis_url: str) -> Iterator[Celery]:
    """A producer on the ledger transport."""
    app = Celery("producer", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(celery_settings())
    yield app
    app.close()


def text_of(result: Any) -> str:
    """Text of a job's Celery result."""
    outcome: dict[str, Any] = result.get(timeout=20)
    assert outcome["state"] == "succeeded"
    return str(outcome["text"])


@pytest.mark.usefixtures("sim_worker")
def test_a_plain_celery_producer(stock: Celery, redis_url: str, sim_worker: RunningWorker) -> None:
    spec = {"prompt": f"{CANARY} question", "max_new_tokens": 3, "metadata": {"note": CANARY}}
    sent = [
        stock.send_task("ccs.run", args=[spec], queue="ccs.text", priority=priority)
        for priority in (None, 3, 6, 9)
    ]
    texts = {text_of(result) for result in sent}
    assert len({len(text.split()) for text in texts}) == 1
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert all(client.hget(f"ccs:job:{result.id}", "state") == "succeeded" for result in sent)
        wait_until(lambda: client.keys("ccs.*") == [] and client.zcard("ccs:running") == 0, 5)
    assert CANARY not in sim_worker.output


def test_inline_media_and_a_seed_give_the_same_text_as_text_by_reference(
    stock: Celery, sim_worker: RunningWorker, redis_url: str
) -> None:
    image = base64.b64encode(b"not looked at by the simulated engine").decode()
    spec = {"prompt": "read", "images": [{"base64": image}], "seed": 7}
    first = stock.send_task("ccs.run", args=[spec], queue="ccs.vision")
    second = stock.send_task("ccs.run", args=[spec], queue="ccs.vision")
    assert text_of(first) == text_of(second) != ""
    with redis.Redis.from_url(redis_url) as client:
        (blob,) = client.keys("ccs:blob:*")
        assert 0 < client.ttl(blob) <= 300
        assert client.hget(f"ccs:job:{first.id}", "job") is None


@pytest.mark.usefixtures("sim_worker")
def test_a_job_that_is_not_valid_fails_with_its_code(stock: Celery) -> None:
    for args, queue, words in (
        ([{"max_new_tokens": 3}], "ccs.text", "prompt"),
        ([{"prompt": "x", "max_new_tokens": -1}], "ccs.text", "max_new_tokens"),
        (["just text"], "ccs.text", "one object"),
        ([{"prompt": "x", "modality": "audio"}], "ccs.text", "audio"),
        ([{"prompt": "x", "images": [{"sha256": "0" * 64, "size_bytes": 5}]}], "ccs.vision", "blob store"),
        ([{"prompt": "x", "model": "nobody"}], "ccs.text", "nobody"),
    ):  # fmt: skip
        result = stock.send_task("ccs.run", args=args, queue=queue)
        with pytest.raises(Exception, match=words) as caught:
            result.get(timeout=20)
        assert "INVALID_INPUT" in str(caught.value)


@pytest.mark.usefixtures("sim_worker")
def test_chain_and_chord_of_jobs(ours: Celery) -> None:
    def job(prompt: str) -> Any:
        return ours.signature(
            "ccs.run", args=[{"prompt": prompt, "max_new_tokens": 2, "seed": 1}], queue="ccs.text"
        )

    alone = text_of(job("one").apply_async())
    expected = text_of(job(f"two {alone}").apply_async())
    assert text_of(chain(job("one"), job("two {previous.text}")).apply_async()) == expected
    both = text_of(job(f"{alone}\n{alone} end").apply_async())
    assert text_of(chord([job("one"), job("one")], job("{previous.text} end")).apply_async()) == both


def test_a_failed_job_stops_its_chain(ours: Celery, sim_worker: RunningWorker) -> None:
    bad = ours.signature("ccs.run", args=[{"prompt": "x", "max_new_tokens": 32_768 * 2}], queue="ccs.text")
    with pytest.raises(Exception, match="max_new_tokens"):
        bad.apply_async()
    with pytest.raises(Exception, match="NO_SUITABLE_WORKER"):
        ours.send_task("ccs.run", args=[{"prompt": "x", "model": "nobody"}], queue="ccs.text")


def test_revoking_what_expired_is_seen_by_its_producer(stock: Celery, redis_url: str, tmp_path: Path) -> None:
    result = stock.send_task("ccs.run", args=[{"prompt": "x", "deadline_s": 0.2}], queue="ccs.text")
    late = stock.send_task("ccs.run", args=[{"prompt": "x"}], queue="ccs.text", expires=0.2)
    with redis.Redis.from_url(redis_url) as client:
        sent = client.time()
        wait_until(lambda: client.time()[0] > sent[0] + 1, 5)
        with worker(redis_url, simulated_models(tmp_path, rate=1)):
            with pytest.raises(TaskRevokedError):
                late.get(timeout=20)
            with pytest.raises(TaskRevokedError):
                result.get(timeout=20)
            assert client.hget(f"ccs:job:{late.id}", "state") == b"expired"
            assert client.hget(f"ccs:job:{result.id}", "state") == b"expired"


@pytest.mark.parametrize("terminate", [False, True])
def test_a_revoke_cancels_and_every_answer_agrees(
    stock: Celery, redis_url: str, tmp_path: Path, terminate: bool
) -> None:
    with worker(redis_url, simulated_models(tmp_path, rate=20), slots=1) as running:
        busy = stock.send_task("ccs.run", args=[{"prompt": "busy", "max_new_tokens": 60}], queue="ccs.text")
        waiting = stock.send_task("ccs.run", args=[{"prompt": "waits"}], queue="ccs.text")
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            wait_until(lambda: client.hget(f"ccs:job:{busy.id}", "first"), 20)
            waiting.revoke()
            busy.revoke(terminate=terminate)
            ended = "cancelled" if terminate else "succeeded"
            wait_until(lambda: client.hget(f"ccs:job:{busy.id}", "state") == ended, 20)
            wait_until(lambda: client.hget(f"ccs:job:{waiting.id}", "state") == "cancelled", 20)
            assert stock.AsyncResult(busy.id).state == ("REVOKED" if terminate else "SUCCESS")
            assert stock.AsyncResult(waiting.id).state == "REVOKED"
            wait_until(lambda: client.zcard("ccs:running") == 0, 5)
        assert running.process.poll() is None


@pytest.mark.parametrize(
    ("protocol", "serializer", "told"),
    [(2, "pickle", "content type isn't application/json"), (1, "json", "protocol 2 is needed")],
)
@pytest.mark.usefixtures("sim_worker", "no_key_leaks")
def test_the_producer_of_a_message_that_can_not_be_read_learns_of_it(
    stock: Celery, redis_url: str, protocol: int, serializer: str, told: str
) -> None:
    stock.conf.task_protocol = protocol
    result = stock.send_task("ccs.run", args=[{"prompt": CANARY}], queue="ccs.text", serializer=serializer)
    with pytest.raises(InvalidInputError, match=told) as caught:
        result.get(timeout=20)
    assert CANARY not in str(caught.value)
    assert result.state == "FAILURE"
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen("ccs:dead") == 1
        assert 0 < client.ttl(f"celery-task-meta-{result.id}") <= 24 * 3600


def test_a_message_that_can_not_be_read_changes_no_result_that_is_there(
    stock: Celery, redis_url: str, sim_worker: RunningWorker
) -> None:
    good = stock.send_task("ccs.run", args=[{"prompt": "x"}], queue="ccs.text")
    text = text_of(good)
    with redis.Redis.from_url(redis_url) as client:
        for task_id in (good.id, "other", "a b", "x" * 65, 5, None):
            client.lpush("ccs.text", json.dumps({"headers": {"id": task_id}}))
        client.lpush("ccs.text", json.dumps({"headers": {"id": "quiet", "ignore_result": True}}))
        wait_until(lambda: client.llen("ccs:dead") == 7)
        assert text_of(good) == text
        results = {key.decode() for key in client.scan_iter("celery-task-meta-*")}
        assert results == {f"celery-task-meta-{good.id}", "celery-task-meta-other"}


def hostile(marker: Path) -> list[bytes]:
    """What must not end a worker."""

    headers = {"task": "ccs.run", "id": "11111111-1111-1111-1111-111111111111"}

    def message(**changes: Any) -> bytes:
        whole: dict[str, Any] = {
            "body": base64.b64encode(json.dumps([[{"prompt": "x"}], {}, {}]).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": {"body_encoding": "base64", "delivery_info": {}},
        }
        return json.dumps(whole | changes).encode()

    # A pickle, written by hand, that calls os.mkdir(marker) when it is loaded.
    pickled = base64.b64encode(f"cos\nmkdir\n(V{marker}\ntR.".encode()).decode()
    return [
        b"not json", b"{}", b"[]", b"\xff\xfe\x00", b"x" * 5_000_000, b"[" * 100_000, b"null", b'"text"',
        message(headers=None), message(headers={}), message(headers={"task": "ccs.run"}),
        message(headers=headers | {"id": 5}), message(headers=headers | {"id": "a b|1"}),
        message(headers=headers | {"timelimit": "soon"}), message(headers=headers | {"eta": "tomorrow"}),
        message(headers=headers | {"eta": 5}), message(headers=headers | {"expires": [1]}),
        message(body="!!!"), message(body=5), message(body=base64.b64encode(b"\xff").decode()),
        message(body=base64.b64encode(b"[1,2]").decode()), message(body=base64.b64encode(b'["a","b","c"]').decode()),
        message(properties=None), message(properties=[]), message(properties={"body_encoding": "rot13"}),
        message(properties={"body_encoding": "base64", "delivery_info": "x"}),
        message(**{"content-type": "application/x-python-serialize", "content-encoding": "binary", "body": pickled}),
        message(**{"content-type": "application/x-yaml"}),
    ]  # fmt: skip


def test_hostile_messages_are_buried_and_the_worker_goes_on(
    sim_worker: RunningWorker, stock: Celery, redis_url: str, tmp_path: Path
) -> None:
    marker = tmp_path / "executed"
    items = hostile(marker)
    with redis.Redis.from_url(redis_url) as client:
        client.lpush("ccs.text", *items)
        client.lpush("ccs.text:1", b"not a ticket", b"{}", b"\x00ccs-ticket", b"\x00ccs-ticket")
        after = stock.send_task("ccs.run", args=[{"prompt": "after"}], queue="ccs.text")
        assert text_of(after)
        wait_until(lambda: client.llen("ccs:dead") == len(items) + 2, 10, "all to be buried")
        letters = [json.loads(letter) for letter in client.lrange("ccs:dead", 0, -1)]
        assert max(len(json.dumps(letter)) for letter in letters) < 100_000
        assert {letter["size_bytes"] for letter in letters} >= {8, 2, 5_000_000}
        assert all(letter["reason"] for letter in letters)
        assert client.ttl("ccs:dead") > 0
    assert sim_worker.process.poll() is None
    assert not marker.exists()


def test_an_unknown_task_does_not_show_its_arguments(
    sim_worker: RunningWorker, stock: Celery, redis_url: str
) -> None:
    stock.send_task("ccs.unknown", args=[{"prompt": CANARY}], queue="ccs.text")
    after = stock.send_task("ccs.run", args=[{"prompt": "after"}], queue="ccs.text")
    assert text_of(after)
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: client.zcard("ccs:running") == 0, 5)
    assert CANARY not in sim_worker.output
