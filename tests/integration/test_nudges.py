"""A worker that doesn't listen to a queue for a moment is called back: for urgent jobs, and when its room has grown."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
import redis
from celery import Celery
from kombu import Consumer, Queue

from ccs_broker import Client
from ccs_broker.contract import OutcomeState
from ccs_broker.ledger import Ending, Ledger
from ccs_broker.transport import CLAIMS, WorkerProfile, celery_settings
from ccs_broker.transport.mutes import MUTE_S
from tests.helpers import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_key_leaks")]


class Listener:
    """A consumer of text jobs that serves the model ``a``, in this process."""

    def __init__(self, connection, queue: str = "ccs.text") -> None:
        self.connection = connection
        self.received: list[str] = []
        self.consumer = Consumer(
            connection.default_channel, [Queue(queue)], on_message=self._on_message, accept=["json"]
        )
        self.consumer.consume()

    def _on_message(self, message) -> None:
        self.received.append(message.headers["id"])

    def listen(self, seconds: float) -> float:
        """Until a job has come, or so long; the seconds it took."""
        begun, before = time.monotonic(), len(self.received)
        while len(self.received) == before and time.monotonic() - begun < seconds:
            try:
                self.connection.drain_events(timeout=0.05)
            except TimeoutError:
                continue
        return time.monotonic() - begun


@contextmanager
def listener(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CLAIMS, "profile", WorkerProfile(name="w", models=("a",)))
    with Celery(broker=url) as app:
        app.conf.update(celery_settings())
        with app.connection_for_read() as connection:
            yield Listener(connection)
    for job_id, attempt in CLAIMS.renewable():
        CLAIMS.remove((job_id, attempt))


@pytest.fixture
def mute(redis_url: str, monkeypatch: pytest.MonkeyPatch):
    """A listener that has just found a job of a model it doesn't serve."""
    with Client(redis_url) as client, redis.Redis.from_url(redis_url) as raw:
        strange = client.submit("text", prompt="x", model="b")
        with listener(redis_url, monkeypatch) as found:
            wait_until(lambda: found.listen(0.1) and raw.exists("ccs:muted:ccs.text"))
            yield found, client, raw
        strange.cancel()
        for job_id in found.received:
            # Closing the consumer has handed back what no thread had begun.
            if not Ledger(raw).finish(job_id, 1, Ending(state=OutcomeState.SUCCEEDED, outcome="{}")):
                client.job(job_id).cancel()


def test_an_urgent_job_wakes_a_muted_worker_at_once(mute) -> None:
    found, client, raw = mute
    urgent = client.submit("text", prompt="x", qos="interactive")
    assert found.listen(5) < MUTE_S / 2
    assert found.received == [urgent.id]
    assert raw.llen("ccs.text:1") == raw.zcard("ccs:waiting:ccs.text") == 1


def test_raising_a_job_wakes_it_too(mute) -> None:
    found, client, _ = mute
    job = client.submit("text", prompt="x", qos="batch")
    job.reprioritize("realtime")
    assert found.listen(5) < MUTE_S / 2
    assert found.received == [job.id]


def test_others_wait_for_the_end_of_the_mute(mute) -> None:
    found, client, _ = mute
    job = client.submit("text", prompt="x")
    found.listen(3 * MUTE_S)
    assert found.received == [job.id]


def test_a_nudge_that_fits_nobody_is_passed_on_and_ends(mute) -> None:
    found, client, raw = mute
    strange = client.submit("text", prompt="x", qos="realtime", model="b")
    hops = []
    wait_until(
        lambda: (found.listen(0.05) and hops.append(raw.lrange("ccs:nudge:ccs.text", 0, -1))) or len(hops) > 3
    )
    assert any(nudge and nudge[0].endswith(b"+") for nudge in hops)
    assert found.received == []
    strange.cancel()


def test_room_that_has_grown_lifts_the_mute(mute) -> None:
    found, client, _ = mute
    urgent = client.submit("text", prompt="x", qos="realtime")
    found.listen(5)
    assert found.received == [urgent.id]
    # It is muted anew by the job that it can't take.
    wait_until(lambda: found.listen(0.1) and found.connection.default_channel._mutes.muted("ccs.text"))
    job = client.submit("text", prompt="x", qos="batch")
    begun = time.monotonic()
    CLAIMS.end((urgent.id, 1))
    found.listen(5)
    assert time.monotonic() - begun < MUTE_S / 2
    assert found.received == [urgent.id, job.id]
