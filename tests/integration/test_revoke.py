"""Celery's revoke with real workers: kept in the ledger, also for what isn't there yet, and true in a fleet."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery, chain
from celery.exceptions import TaskRevokedError

from ccs_broker import Client
from ccs_broker.errors import NotFoundError
from ccs_broker.transport import celery_settings
from tests.helpers import wait_until
from tests.workers import RunningWorker, simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_key_leaks")]

TOMBS = "ccs:tombstones"


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """A producer on the ledger transport."""
    found = Celery("producer", broker=redis_url, backend=redis_url, set_as_current=False)
    found.conf.update(celery_settings())
    yield found
    # A result that is dropped once its server is gone looks for it for twenty seconds.
    gc.collect()
    found.close()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        yield found


def job(app: Celery, prompt: str, tokens: int = 3, **options: Any) -> Any:
    spec = {"prompt": prompt, "max_new_tokens": tokens, "seed": 2}
    return app.signature("ccs.run", args=[spec], queue="ccs.text", **options)


def answered(app: Celery, job_ids: list[str], *workers: RunningWorker, **options: Any) -> None:
    """Revoke, and wait until every one of these workers has said that it did."""
    names = [running.name for running in workers]
    replies = app.control.revoke(
        job_ids, reply=True, timeout=10, limit=len(names), destination=names, **options
    )
    assert sorted(name for reply in replies for name in reply) == sorted(names)
    assert all("ok" in answer for reply in replies for answer in reply.values()), replies


def test_a_revoke_before_delivery_outlives_every_worker(
    redis_url: str, app: Celery, raw: redis.Redis, tmp_path: Path
) -> None:
    models = simulated_models(tmp_path)
    stock = Celery("stock", broker=redis_url, backend=redis_url, set_as_current=False)
    strange = ["a b|1", "x" * 500, "\u00e9", ""]
    with worker(redis_url, models) as first:
        answered(app, ["job-1", "job-2", "task-1", *strange], first)
        assert sorted(raw.zrange(TOMBS, 0, -1)) == ["job-1", "job-2", "task-1"]
    assert "Control command error" not in first.output
    sent = [
        job(app, "one").apply_async(task_id="job-1", link=job(app, "linked").set(task_id="linked")),
        stock.send_task("ccs.run", args=[{"prompt": "two"}], queue="ccs.text", task_id="job-2"),
        stock.send_task("team.task", queue="ccs.text", task_id="task-1"),
    ]
    after = stock.send_task("ccs.run", args=[{"prompt": "after"}], queue="ccs.text")
    with worker(redis_url, models) as second:
        assert after.get(timeout=20)["state"] == "succeeded"
        wait_until(lambda: raw.zcard("ccs:running") == 0 and raw.llen("ccs.text") == 0, 10)
    for result in sent:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=5)
    # No worker was handed any of them.
    assert not [result.id for result in sent if result.id in second.output]
    assert [raw.hget(f"ccs:job:{one}", "state") for one in ("job-1", "job-2")] == ["cancelled"] * 2
    assert raw.hexists("ccs:job:job-1", "attempt") is False
    # Nor is the link of a job followed that never ran.
    assert raw.exists("ccs:job:linked") == 0
    stock.close()


def test_a_step_of_a_chain_that_is_not_published_yet(
    redis_url: str, app: Celery, raw: redis.Redis, tmp_path: Path
) -> None:
    """The step before it runs, it ends as revoked when its turn comes, and what is behind it never starts."""
    with worker(redis_url, simulated_models(tmp_path, rate=20)) as running, Client(redis_url) as client:
        for how in ("client", "revoke"):
            steps = [job(app, f"step {number} {{previous.text}}", tokens=20) for number in range(3)]
            last = chain(*steps).apply_async()
            first, second = last.parent.parent, last.parent
            wait_until(
                lambda first=first: raw.hget(f"ccs:job:{first.id}", "first"), 20, "the first step to run"
            )
            if how == "revoke":
                answered(app, [second.id], running)
            else:
                with pytest.raises(NotFoundError, match="should a job still arrive"):
                    client.job(second.id).cancel()
            assert raw.zscore(TOMBS, second.id) is not None
            assert first.get(timeout=20)["state"] == "succeeded"
            wait_until(lambda second=second: raw.hget(f"ccs:job:{second.id}", "state") == "cancelled", 10)
            with pytest.raises(TaskRevokedError):
                second.get(timeout=5)
            assert [event.kind for event in client.job(second.id).stream(timeout=1)] == [
                "queued",
                "cancelled",
            ]
            wait_until(lambda: raw.zcard("ccs:running") == 0, 10)
            assert raw.exists(TOMBS, f"ccs:job:{last.id}", "ccs.text:1", "ccs:waiting:ccs.text") == 0


def test_a_revoke_of_what_waits_ends_it_at_once(
    redis_url: str, app: Celery, raw: redis.Redis, tmp_path: Path
) -> None:
    with worker(redis_url, simulated_models(tmp_path, rate=20), slots=1) as running:
        busy = job(app, "busy", tokens=200).apply_async()
        wait_until(lambda: raw.hget(f"ccs:job:{busy.id}", "first"), 20)
        waiting, delayed = job(app, "waits").apply_async(), job(app, "later").apply_async(countdown=60)
        answered(app, [waiting.id, delayed.id], running)
        for result in (waiting, delayed):
            assert raw.hget(f"ccs:job:{result.id}", "state") == "cancelled"
            with pytest.raises(TaskRevokedError):
                result.get(timeout=5)
        assert raw.hget(f"ccs:job:{busy.id}", "state") == "running"
        assert raw.exists(TOMBS) == 0
        app.control.terminate(busy.id, signal="TERM")
        wait_until(lambda: raw.hget(f"ccs:job:{busy.id}", "state") == "cancelled", 10)


def test_in_a_fleet_a_revoke_leaves_alone_what_runs_elsewhere(
    redis_url: str, app: Celery, raw: redis.Redis, tmp_path: Path
) -> None:
    models = simulated_models(tmp_path, rate=20)
    with ExitStack() as stack:
        fleet = [stack.enter_context(worker(redis_url, models, slots=1)) for _ in range(2)]
        goes_on, stops = (
            job(app, name, tokens=tokens).apply_async() for name, tokens in (("a", 60), ("b", 2000))
        )
        for result in (goes_on, stops):
            wait_until(lambda result=result: raw.hget(f"ccs:job:{result.id}", "first"), 20)
        answered(app, [goes_on.id], *fleet)
        assert app.AsyncResult(goes_on.id).state == "PENDING"
        # Told to the one that doesn't run it, which leaves the word in the ledger.
        holder = raw.hget(f"ccs:job:{stops.id}", "worker")
        (other,) = [running for running in fleet if running.name != holder]
        answered(app, [stops.id], other, terminate=True)
        with pytest.raises(TaskRevokedError):
            stops.get(timeout=10)
        assert raw.hget(f"ccs:job:{stops.id}", "state") == "cancelled"
        assert goes_on.get(timeout=20)["state"] == "succeeded"
        assert raw.exists(TOMBS) == 0
