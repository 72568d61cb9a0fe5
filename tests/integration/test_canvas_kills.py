"""Canvas over jobs under kills: what follows a job is done once, whoever dies between its outcome and its ack."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery, chain, chord

from ccs_broker import Client
from ccs_broker.server import EmbeddedServer
from ccs_broker.transport import celery_settings
from ccs_workers.consume.app import build_app
from ccs_workers.settings import WorkerSettings
from tests.helpers import wait_until
from tests.workers import simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.redis, pytest.mark.chaos]
LEASE = {"CCS_LEASE_S": "1", "CCS_SWEEP_S": "0.3"}


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    found = Celery("canvas", broker=redis_url, backend=redis_url, set_as_current=False)
    found.conf.update(celery_settings())
    yield found
    found.close()


def job(app: Celery, prompt: str, tokens: int = 3) -> Any:
    spec = {"prompt": prompt, "max_new_tokens": tokens, "seed": 2}
    return app.signature("ccs.run", args=[spec], queue="ccs.text")


def runs(redis_url: str) -> int:
    """How many jobs have ended well; each of them once."""
    with redis.Redis.from_url(redis_url) as raw:
        counts = [
            sum(fields[b"k"] == b"succeeded" for _, fields in raw.xrange(log))
            for log in raw.scan_iter("ccs:log:*")
        ]
    assert max(counts, default=0) <= 1
    return sum(counts)


def simulate_death_before_the_links(redis_url: str, job_id: str) -> None:
    """Put a finished job into the state that a worker leaves which dies between outcome and link."""
    with redis.Redis.from_url(redis_url) as raw:
        attempt = int(raw.hget(f"ccs:job:{job_id}", "attempt"))
        raw.hset(f"ccs:job:{job_id}", "links", "1")
        raw.zadd("ccs:running", {f"{job_id}|{attempt}": 1})


def test_a_repeated_delivery_applies_links_again_without_running_anything_twice(
    app: Celery, redis_url: str, tmp_path: Path
) -> None:
    first = job(app, "one")
    first.link(job(app, "linked {previous.text}"))
    sent = first.apply_async()
    with redis.Redis.from_url(redis_url) as raw:
        message = raw.hget(f"ccs:job:{sent.id}", "msg")
        with worker(redis_url, simulated_models(tmp_path), environment=LEASE):
            wait_until(lambda: runs(redis_url) == 2 and raw.zcard("ccs:running") == 0, 15)
            assert raw.hget(f"ccs:job:{sent.id}", "links") is None
            assert raw.hget(f"ccs:job:{sent.id}", "msg") is None
            raw.hset(f"ccs:job:{sent.id}", "msg", message)
            simulate_death_before_the_links(redis_url, sent.id)
            wait_until(
                lambda: raw.hget(f"ccs:job:{sent.id}", "links") is None, 15, "the links to be done again"
            )
            wait_until(lambda: raw.zcard("ccs:running") == 0, 10)
            assert raw.hget(f"ccs:job:{sent.id}", "attempt") == b"2"
            assert raw.hget(f"ccs:job:{sent.id}", "state") == b"succeeded"
        assert runs(redis_url) == 2
        assert len(list(raw.scan_iter("ccs:job:*"))) == 2


def test_a_chord_ends_whose_claim_a_dead_worker_holds(app: Celery, redis_url: str, tmp_path: Path) -> None:
    """Whoever dies between a chord's last part and its body leaves a claim: the part, redelivered, outlasts it."""
    header = [job(app, f"part {n}", 8) for n in range(3)]
    with (
        redis.Redis.from_url(redis_url) as raw,
        worker(redis_url, simulated_models(tmp_path, rate=20), environment=LEASE),
    ):
        sent = chord(header, job(app, "{previous.text} end")).apply_async()
        assert sent.parent is not None
        claim = app.backend.get_key_for_group(sent.parent.id, ".c")
        assert raw.set(claim, "of a dead worker", px=1500, nx=True)
        assert sent.get(timeout=15)["state"] == "succeeded"
        assert runs(redis_url) == 4
        wait_until(lambda: not raw.zcard("ccs:running"), 5, "every lease to end")
        assert raw.get(claim) == b"done"


def test_what_follows_a_job_waits_for_the_server(tmp_path: Path) -> None:
    """A chord's body that is sent just as the server goes away; Celery gives that up after 0.6 s."""
    with EmbeddedServer(appendonly=True, config={"appendfsync": "always"}) as server:
        sender = build_app(WorkerSettings(url=server.url))
        body = job(sender, "the body").set(task_id="body")
        # Over the connection that is used again, as in a worker.
        job(sender, "the job before").delay()
        server.kill()
        failures: list[BaseException] = []

        def send() -> None:
            try:
                sender.amqp._retry_publish(body.delay)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells
                failures.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        # Longer than Celery's own patience; no condition tells that it has begun to wait.
        thread.join(1.5)
        server.restart()
        thread.join(10)
        assert not thread.is_alive()
        assert not failures
        with redis.Redis.from_url(server.url) as raw:
            assert raw.hget("ccs:job:body", "state") == b"waiting"
        sender.close()


def test_chains_and_chords_end_once_under_kills(app: Celery, redis_url: str, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("a", "b", "c", "d")]
    for place in places:
        place.mkdir()
    with worker(redis_url, simulated_models(places[0], rate=40), environment=LEASE) as steady:
        assert steady.process.poll() is None
        chains = [
            chain(*(job(app, f"{n} {{previous.text}}", 8) for _ in range(3))).apply_async() for n in range(4)
        ]
        chords = [
            chord(
                [job(app, f"part {n} {i}", 8) for i in range(8)], job(app, "{previous.text} end", 8)
            ).apply_async()
            for n in range(2)
        ]
        for place in places[1:]:
            with worker(redis_url, simulated_models(place, rate=40), environment=LEASE) as doomed:
                with redis.Redis.from_url(redis_url) as raw:
                    mine = doomed.name.encode()

                    def busy(mine: bytes = mine, raw: redis.Redis = raw) -> bool:
                        entries = raw.zrange("ccs:running", 0, -1)
                        ids = [entry.rpartition(b"|")[0] for entry in entries]
                        done = raw.zcard("ccs:waiting:ccs.text") == 0 and not entries
                        return done or any(raw.hget(b"ccs:job:" + one, "worker") == mine for one in ids)

                    wait_until(busy, 20)
                os.kill(doomed.process.pid, signal.SIGKILL)
        for result in [*chains, *chords]:
            assert result.get(timeout=60)["state"] == "succeeded"
        with redis.Redis.from_url(redis_url) as raw, Client(redis_url):
            wait_until(lambda: raw.zcard("ccs:running") == 0, 15)
        assert runs(redis_url) == 4 * 3 + 2 * 9
