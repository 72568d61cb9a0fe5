"""A chord whose last part meets an outage is not failed: the join is repeated, and the body sent once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from ccs_workers.consume.chords import ChordBackend, ChordClient, backend_url

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = 3


class Chord:
    """The keys of a chord as its producer leaves them, and the parts that report."""

    def __init__(self, url: str) -> None:
        self.app = Celery("chords", broker=url, backend=backend_url(url), set_as_current=False)
        self.app.conf.task_default_queue = "bodies"

        @self.app.task(name="body", shared=False)
        def body(parts: list[int]) -> list[int]:
            return parts

        self.body = body.s().set(task_id="the-body")
        self.redis = redis.Redis.from_url(url)
        self.backend: ChordBackend = self.app.backend
        self.backend.set_chord_size("group", PARTS)

    def report(self, part: int) -> None:
        request = SimpleNamespace(
            id=f"part-{part}", group="group", group_index=part, chord=dict(self.body), task="t", errbacks=None
        )
        self.backend.on_chord_part_return(request, "SUCCESS", part)

    def bodies(self) -> int:
        return self.redis.llen("bodies")


@pytest.fixture
def chord(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chord]:
    # The claim of an interrupted join runs out by itself; here it needn't take seconds.
    stock = ChordBackend._is_claimed

    def is_claimed(backend: ChordBackend, group: str) -> bool:
        claimed = stock(backend, group)
        if claimed:
            found.redis.delete(f"{KEY}.c")
        return claimed

    monkeypatch.setattr(ChordBackend, "_is_claimed", is_claimed)
    found = Chord(redis_url)
    yield found
    found.redis.close()
    found.app.close()


KEY = "celery-taskset-meta-group"


def failing_once(method: Any, error: Exception) -> tuple[Any, list[int]]:
    calls: list[int] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return method(*args, **kwargs)

    return call, calls


def test_the_body_is_sent_with_the_last_part(chord: Chord) -> None:
    for part in range(PARTS):
        assert chord.bodies() == 0
        chord.report(part)
    assert chord.bodies() == 1
    assert chord.redis.exists(f"{KEY}.j", f"{KEY}.s", f"{KEY}.d") == 0
    chord.report(PARTS - 1)
    assert chord.bodies() == 1


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("gone"),
        redis.TimeoutError("slow"),
        ConnectionResetError(),
        redis.ReadOnlyError("no"),
    ],
)
def test_a_join_that_an_outage_interrupts_is_repeated(
    chord: Chord, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for part in range(PARTS - 1):
        chord.report(part)
    pipeline, calls = failing_once(ChordClient.pipeline, error)
    monkeypatch.setattr(ChordClient, "pipeline", lambda *args, **kwargs: pipeline(*args, **kwargs))
    chord.report(PARTS - 1)
    assert len(calls) > 1
    assert chord.bodies() == 1
    assert chord.redis.get("celery-task-meta-the-body") is None


@pytest.mark.parametrize("error", [OperationalError("away"), redis.ConnectionError("gone")])
def test_a_body_that_can_t_be_sent_is_sent_later(
    chord: Chord, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for part in range(PARTS - 1):
        chord.report(part)
    publish, calls = failing_once(chord.app.amqp._retry_publish, error)
    monkeypatch.setattr(chord.app.amqp, "_retry_publish", publish)
    chord.report(PARTS - 1)
    assert (len(calls), chord.bodies()) == (2, 1)
    assert chord.redis.exists(f"{KEY}.j", f"{KEY}.s") == 0


def test_what_no_time_heals_fails_the_chord(chord: Chord, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(PARTS - 1):
        chord.report(part)
    pipeline, _ = failing_once(ChordClient.pipeline, ValueError("a fault of ours"))
    monkeypatch.setattr(ChordClient, "pipeline", lambda *args, **kwargs: pipeline(*args, **kwargs))
    chord.report(PARTS - 1)
    assert chord.bodies() == 0
    assert b"ChordError" in chord.redis.get("celery-task-meta-the-body")
    assert chord.redis.exists(f"{KEY}.s") == 0
