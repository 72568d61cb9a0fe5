"""More work than time: what becomes late is relegated and told so once, refused with a prediction, or left alone."""

from __future__ import annotations

import asyncio

import pytest
import redis

from ccs_broker import AsyncClient, Client
from ccs_broker.client import JobState
from ccs_broker.contract.event import EventKind
from ccs_broker.errors import (
    ConflictError,
    DeadlineUnreachableError,
    InvalidInputError,
    NotFoundError,
    QueueFullError,
    error_for_code,
)
from ccs_broker.ledger import Append, Claim, Ledger
from ccs_broker.settings import LedgerSettings
from tests.claiming import Desk
from tests.helpers import wait_until
from tests.scripted_worker import ScriptedWorker

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_key_leaks")]
LATE = b'{"relegated":true,"reason":"late"}'


@pytest.fixture
def desk(redis_url: str):
    with Desk(redis_url) as found:
        yield found


def told(desk: Desk, job_id: str) -> list[bytes | None]:
    """Data of the job's `queued` events."""
    return [f.get(b"d") for _, f in desk.redis.xrange(f"ccs:log:{job_id}") if f[b"k"] == b"queued"]


def test_a_job_that_becomes_late_is_relegated_and_told_exactly_once(desk: Desk) -> None:
    desk.publish("rt", "realtime", first_s=0.1)
    desk.publish("ok", "realtime", first_s=0.1, overload="accept")
    desk.go(0.79)
    desk.ledger.sweep()
    assert told(desk, "rt") == [None]
    desk.go(0.02)
    for _ in range(3):
        desk.ledger.sweep()
        desk.go(1)
    assert told(desk, "rt") == [None, LATE]
    assert told(desk, "ok") == [None]
    assert float(desk.redis.zscore("ccs:waiting:ccs.text", "rt")) == 320 * 105_000
    assert desk.redis.zscore("ccs:aged:ccs.text", "rt") is not None
    desk.publish("standard", tenant="new")
    first, second, third = (desk.claim() for _ in range(3))
    assert [(c.id, c.relegated, c.rank) for c in (first, second, third)] == [
        ("ok", False, 0), ("standard", False, 2), ("rt", True, 0),
    ]  # fmt: skip
    for claim in (first, second, third):
        desk.finish(claim)


def test_a_claim_relegates_as_well_so_a_late_job_never_goes_before_one_that_can_be_in_time(
    desk: Desk,
) -> None:
    desk.publish("late", "realtime", first_s=0.5)
    desk.go(0.5)
    desk.publish("fresh", "interactive", first_s=0.5)
    claims = [desk.claim(), desk.claim()]
    assert [claim.id for claim in claims] == ["fresh", "late"]
    for claim in claims:
        desk.finish(claim)


def test_a_job_that_can_not_be_in_time_at_all_is_relegated_from_the_start(desk: Desk) -> None:
    desk.publish("hopeless", "realtime", first_s=2.0)
    assert told(desk, "hopeless") == [LATE]
    desk.go(60)
    desk.ledger.sweep()
    assert told(desk, "hopeless") == [LATE]
    desk.end_all(["hopeless"])


def test_a_running_job_is_told_too_and_its_stream_has_no_hole(desk: Desk) -> None:
    desk.publish("run", "realtime", first_s=0.1)
    claim = desk.claim()
    assert isinstance(claim, Claim)
    desk.go(2)
    desk.ledger.sweep()
    assert told(desk, "run") == [None, LATE]
    # The worker knows nothing of that event: it goes on behind the last one that it knows of.
    events = [Append(kind=EventKind.DELTA, text=text) for text in "ab"]
    for _ in range(2):
        assert desk.ledger.append("run", claim.attempt, events, after=claim.seq, first_output=True) == (
            "ok",
            5,
        )
    assert desk.ledger.append("run", claim.attempt, events[:1], after=5) == ("ok", 6)
    log = [(f[b"k"].decode(), f.get(b"x", b"").decode()) for _, f in desk.redis.xrange("ccs:log:run")]
    assert log == [
        ("queued", ""),
        ("started", ""),
        ("queued", ""),
        ("delta", "a"),
        ("delta", "b"),
        ("delta", "a"),
    ]
    assert desk.ledger.release("run", claim.attempt)
    assert desk.redis.zscore("ccs:aged:ccs.text", "run") is not None
    desk.end_all(["run"])


def test_what_has_its_first_output_is_not_late(desk: Desk) -> None:
    desk.publish("quick", "realtime", first_s=0.1)
    claim = desk.claim()
    desk.ledger.append(
        "quick", 1, [Append(kind=EventKind.DELTA, text="x")], after=claim.seq, first_output=True
    )
    desk.go(5)
    desk.ledger.sweep()
    assert told(desk, "quick") == [None]
    desk.finish(claim)


def test_refused_with_the_predicted_seconds(redis_url: str) -> None:
    with Client(redis_url) as client, redis.Redis.from_url(redis_url) as raw:
        jobs = [client.submit("text", prompt="x", qos="realtime", overload="accept") for _ in range(10)]
        keys = set(raw.keys())
        with pytest.raises(
            DeadlineUnreachableError, match=r"first output after 2\.050 s, its target is 1 s"
        ) as caught:
            client.submit("text", prompt="x", qos="realtime", overload="refuse", idempotency_key="k")
        assert (caught.value.predicted_s, caught.value.code) == (2.05, "DEADLINE_UNREACHABLE")
        with pytest.raises(DeadlineUnreachableError, match=r"its end after 2\.200 s, its deadline is 2\.1 s"):
            client.submit("text", prompt="x", qos="interactive", deadline_s=2.1, overload="refuse")
        assert set(raw.keys()) == keys
        fine = client.submit("text", prompt="x", qos="interactive", deadline_s=2.3, overload="refuse")
        # Two workers halve the wait.
        ledger = Ledger(raw)
        for name in "ab":
            ledger.run(ledger.calls.report(name, "{}", 60, []))
        also = client.submit("text", prompt="x", qos="interactive", deadline_s=1.4, overload="refuse")
        many = client.submit_many(
            [{"modality": "text", "prompt": "x", "qos": "realtime", "overload": "refuse"}] * 2,
            return_errors=True,
        )
        assert [type(each) for each in many] == [DeadlineUnreachableError] * 2
        for job in (*jobs, fine, also):
            job.cancel()
    assert error_for_code("DEADLINE_UNREACHABLE", "x").predicted_s is None


def test_a_queue_takes_only_so_many(redis_url: str) -> None:
    with Client(redis_url, ledger=LedgerSettings(queue_limit=2)) as client:
        jobs = [client.submit("text", prompt="x", idempotency_key=str(n)) for n in range(2)]
        with pytest.raises(QueueFullError, match=r"QUEUE_FULL: 2 jobs wait on ccs\.text") as caught:
            client.submit("text", prompt="x")
        assert not caught.value.maybe_accepted
        assert client.submit("text", prompt="x", idempotency_key="1").id == jobs[1].id
        vision = client.submit("vision", images=[b"picture"])
        jobs.pop().cancel()
        jobs.append(client.submit("text", prompt="x"))
        for job in (*jobs, vision):
            job.cancel()


def test_reprioritize_moves_a_waiting_job(redis_url: str) -> None:
    with Client(redis_url) as client, ScriptedWorker(redis_url) as worker:
        first, second = (client.submit("text", prompt="x", tenant=name) for name in "ab")
        before = second.status()
        assert (before.qos, before.relegated, before.position) == ("standard", False, second.id > first.id)
        after = second.reprioritize("realtime")
        assert (after.qos, after.position, after.state) == ("realtime", 0, JobState.WAITING)
        assert after.expires_ms == before.expires_ms
        assert first.status().position == 1
        changed = first.reprioritize(deadline_s=100)
        assert changed.qos == "standard"
        assert 99_000 < changed.expires_ms - changed.submitted_ms < 102_000
        assert worker.claim().id == second.id
        with pytest.raises(ConflictError, match=r"doesn't wait any more, it is running"):
            second.reprioritize("batch")
        worker.finish()
        with pytest.raises(ConflictError, match="succeeded"):
            second.reprioritize("batch")
        with pytest.raises(NotFoundError):
            client.job("nobody").reprioritize("batch")
        for wrong in (
            {},
            {"qos": "soon"},
            {"deadline_s": 0},
            {"deadline_s": True},
            {"deadline_s": float("nan")},
        ):
            with pytest.raises(InvalidInputError):
                first.reprioritize(**wrong)
        assert worker.claim().id == first.id
        worker.finish()


def test_reprioritize_moves_a_deadline_that_then_passes(redis_url: str) -> None:
    with Client(redis_url) as client, redis.Redis.from_url(redis_url) as raw:
        job = client.submit("text", prompt="x", deadline_s=500)
        job.reprioritize(deadline_s=0.001)
        ledger = Ledger(raw)
        wait_until(lambda: ledger.sweep().expired)
        assert job.status().state is JobState.EXPIRED


def test_reprioritize_and_weights_from_the_asynchronous_client(redis_url: str) -> None:
    async def main() -> None:
        async with AsyncClient(redis_url) as client:
            job = await client.submit("text", prompt="x", qos="batch", tenant="acme")
            assert (await job.reprioritize("interactive", 30)).qos == "interactive"
            await client.set_weight("acme", 3)
            await client.set_weight("idle", 0.5)
            shares = [(each.name, each.weight, each.waiting) for each in await client.tenants()]
            assert shares == [("acme", 3.0, 1), ("idle", 0.5, 0)]
            for name, weight in (("", 1), ("a b", 1), ("acme", 0), ("acme", float("nan")), ("acme", 1e9)):
                with pytest.raises(InvalidInputError):
                    await client.set_weight(name, weight)
            await job.cancel()

    asyncio.run(main())


def test_status_and_queues_tell_what_is_to_be_expected(redis_url: str) -> None:
    with Client(redis_url) as client:
        jobs = [client.submit("text", prompt="x", tenant="t") for _ in range(5)]
        estimates = [job.status().estimate_s for job in jobs]
        assert estimates == [0.0, 0.2, 0.4, 0.6, 0.8]
        urgent = client.submit("text", prompt="x", qos="realtime", tenant="u")
        assert urgent.status().estimate_s == 0.0
        hopeless = client.submit("text", prompt="x", qos="realtime", deadline_s=0.01)
        assert hopeless.status().relegated
        assert [(q.waiting, q.relegated) for q in client.queues().queues if q.name == "ccs.text"] == [(7, 1)]
        for job in (*jobs, urgent, hopeless):
            job.cancel()
        assert jobs[0].status().estimate_s is None
