"""Connections that go silent, replies that are lost, and leases over an outage: readers wait a moment, not a lease."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import redis

from ccs_broker import Client
from ccs_broker.ledger import Claim, ClaimWish, Ledger
from ccs_broker.scripts import script
from ccs_broker.settings import LedgerSettings
from ccs_broker.transport.claims import ClaimTable, WorkerProfile
from ccs_broker.transport.strays import hand_back_strays
from tests.blackhole import blackhole
from tests.integration.test_outages import LEASE, begin, check, check_consumes, check_worker
from tests.workers import simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccs_broker.client import JobHandle

pytestmark = pytest.mark.chaos


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, timeout_s=2.0) as found:
        yield found


def longest_silence_s(job: JobHandle, raw: redis.Redis) -> float:
    """Longest time between two entries of a job's log once it has started, by the broker's clock."""
    times = [int(fields[b"t"]) for _, fields in raw.xrange(f"ccs:log:{job.id}")[1:]]
    return max(later - earlier for earlier, later in pairwise(times)) / 1000


def test_connections_that_go_silent(redis_url: str, raw: redis.Redis, client: Client, tmp_path: Path) -> None:
    """Nothing is closed, nothing comes: every call gives up in time for a new connection to keep the lease."""
    with (
        blackhole(redis_url) as way,
        worker(way.url, simulated_models(tmp_path, rate=20), slots=4, environment=LEASE) as running,
    ):
        jobs = [begin(client, 120) for _ in range(3)]
        assert way.go_silent() > 3
        # The first of these may go to the connection that hears nothing, as a ticket that its sweep then replaces.
        check_consumes(client)
        for job in jobs:
            check(job, running, 120)
            assert longest_silence_s(job, raw) < 1.5
        check_worker(running, raw)


def test_a_claim_whose_reply_is_lost(
    redis_url: str, raw: redis.Redis, client: Client, tmp_path: Path
) -> None:
    """The ledger has given the job away and nobody has it: it is handed back long before its lease runs out."""
    with (
        blackhole(redis_url) as way,
        worker(way.url, simulated_models(tmp_path), environment={"CCS_LEASE_S": "30"}) as running,
    ):
        way.lose_reply_to(script("claim").sha.encode())
        begun = time.monotonic()
        job = client.submit("text", prompt="given away", max_new_tokens=2)
        outcome = job.result(timeout=15)
        assert time.monotonic() - begun < 5
        assert way.lost
        assert (outcome.state, outcome.attempts) == ("succeeded", 2)
        check_worker(running, raw)


def test_only_strays_are_handed_back(raw: redis.Redis, client: Client) -> None:
    ledger = Ledger(raw)
    table = ClaimTable()
    table.profile = WorkerProfile(name="mine")
    claims = []
    for worker_name in ("mine", "mine", "another"):
        client.submit("text", prompt="x")
        raw.rpop("ccs.text:1")
        claim = ledger.claim(ClaimWish(popped="ccs.text", queues=("ccs.text",), worker=worker_name))
        assert isinstance(claim, Claim)
        claims.append(claim)
    held, stray, others = claims
    table.add(held)
    table.doubt()
    assert [hand_back_strays(ledger, table), hand_back_strays(ledger, table)] == [1, 0]
    assert table.doubts == 0
    assert [client.job(claim.id).status().state for claim in (held, stray, others)] == [
        "running",
        "waiting",
        "running",
    ]
    # A worker without a name of its own can't tell, and takes nothing from anybody.
    table.profile = WorkerProfile()
    table.doubt()
    assert hand_back_strays(ledger, table) == 0
    assert table.doubts == 0


def test_an_outage_costs_a_lease_no_more_than_its_own_length(raw: redis.Redis, client: Client) -> None:
    """Who died before the outage isn't waited for a whole lease anew; who lives has as long as it had."""
    ledger = Ledger(raw, LedgerSettings(lease_s=5.0, sweep_s=0.1))
    client.submit("text", prompt="x")
    raw.rpop("ccs.text:1")
    claim = ledger.claim(ClaimWish(popped="ccs.text", queues=("ccs.text",), worker="dead"))
    assert isinstance(claim, Claim)
    entry = f"{claim.id}|{claim.attempt}"
    # As if two of five seconds had gone by, with sweeps in time all along.
    raw.zincrby("ccs:running", -2000, entry)
    ledger.sweep()
    raw.zincrby("ccs:running", -2000, entry)
    swept, ends = time.monotonic(), raw.zscore("ccs:running", entry)
    time.sleep(0.4)
    ledger.sweep()
    away_ms = (time.monotonic() - swept) * 1000
    prolonged = raw.zscore("ccs:running", entry)
    assert prolonged is not None
    assert ends is not None
    assert prolonged - ends == pytest.approx(away_ms, abs=100)
    ledger.sweep()
    assert raw.zscore("ccs:running", entry) == prolonged
