"""Many pipelines whose steps fail at random, and workers that are killed under them: each ends once, by its plan."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
import redis

from ccs_broker import Client
from ccs_broker.pipelines.records import step_id
from tests.helpers import wait_until
from tests.integration.test_pipelines import FAILS, MODELS, states
from tests.workers import worker

if TYPE_CHECKING:
    from pathlib import Path

    from ccs_broker.client import PipelineHandle

pytestmark = [pytest.mark.redis, pytest.mark.chaos]

PIPELINES = 200
GOOD = {"max_new_tokens": 3}
ENVIRONMENT = {"CCS_LEASE_S": "2", "CCS_SWEEP_S": "0.3"}


class Expected:
    """One random pipeline of four steps, and how it must end."""

    def __init__(self, client: Client, pick: random.Random) -> None:
        joins = pick.choice(("b", "c", "b c"))
        needs = {"a": (), "b": ("a",), "c": ("a",), "d": tuple(joins.split())}
        policies = {name: pick.choice(("fail", "fail", "skip", "default")) for name in needs}
        fails = {name for name in needs if pick.random() < 0.2}
        pipeline = client.pipeline(qos="interactive")
        for name, takes in needs.items():
            prompt = f"{name} " + " ".join(f"{{{one}.text}}" for one in takes)
            more: dict[str, Any] = FAILS if name in fails else GOOD
            default = "stand-in" if policies[name] == "default" else None
            pipeline.step(
                name, "text", on_failure=policies[name], default=default, **{**more, "prompt": prompt}
            )
        self.steps = needs
        self.states: dict[str, str] = {}
        for name, takes in needs.items():
            if any(self.states[one] == "skipped" for one in takes):
                self.states[name] = "skipped"
            elif name in fails:
                self.states[name] = {"fail": "failed", "skip": "skipped", "default": "defaulted"}[
                    policies[name]
                ]
            else:
                self.states[name] = "succeeded"
        #: Once one has failed it all ends; which of two that run at once came first isn't known.
        self.fails = "failed" in self.states.values()
        self.handle: PipelineHandle = pipeline.submit()

    def check(self, raw: redis.Redis) -> None:
        """It has ended as it should, once; every step that began has ended, once."""
        events = list(self.handle.stream(timeout=60))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert sum(event.terminal for event in events) == 1
        outcome = self.handle.result(5)
        assert outcome.state == ("failed" if self.fails else "succeeded"), (self.states, states(outcome))
        if not self.fails:
            assert states(outcome) == self.states
        for name in self.steps:
            own = [event for event in events if event.step == name]
            ends = [event.data["ended"] for event in own if "ended" in event.data]
            assert len(ends) == bool(own), (name, ends)
            record = raw.hget(f"ccs:job:{step_id(self.handle.id, name)}", "state")
            assert (record.decode() if record else None) == (ends[0] if ends else None)


def whole_again(raw: redis.Redis) -> bool:
    """Nothing runs or waits, and nothing is left to be done behind a step."""
    waiting = sum(raw.zcard(f"ccs:waiting:ccs.{name}") for name in ("text", "vision", "audio"))
    return not raw.zcard("ccs:running") and not waiting and not raw.zcard("ccs:expiry")


def test_200_pipelines_whose_steps_fail_at_random(redis_url: str, tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(MODELS)
    pick = random.Random(6)
    with (
        worker(redis_url, models, slots=16, environment=ENVIRONMENT),
        Client(redis_url) as client,
        redis.Redis.from_url(redis_url) as raw,
    ):
        pipelines = [Expected(client, pick) for _ in range(PIPELINES)]
        assert 40 < sum(one.fails for one in pipelines) < 160
        for one in pipelines:
            one.check(raw)
        wait_until(lambda: whole_again(raw), 30, "the last lease to end")
    with redis.Redis.from_url(redis_url) as raw:
        lasting = {key for key in raw.scan_iter() if raw.ttl(key) == -1}
    # What is there whether pipelines run or not.
    assert not [key for key in lasting if not key.startswith((b"_kombu", b"ccs:swept"))], lasting


def test_pipelines_go_on_when_workers_are_killed(redis_url: str, tmp_path: Path) -> None:
    places = [tmp_path / str(number) for number in range(4)]
    for place in places:
        place.mkdir()
        (place / "models.toml").write_text(
            MODELS.replace("context_tokens = 60", "context_tokens = 60\ntokens_per_second = 30")
        )
    pick = random.Random(7)
    with (
        worker(redis_url, places[0] / "models.toml", slots=4, environment=ENVIRONMENT),
        Client(redis_url) as client,
        redis.Redis.from_url(redis_url) as raw,
    ):
        pipelines = [Expected(client, pick) for _ in range(30)]
        for place in places[1:]:
            with worker(redis_url, place / "models.toml", slots=4, environment=ENVIRONMENT) as doomed:
                mine = doomed.name.encode()
                wait_until(
                    lambda mine=mine: (
                        any(  # type: ignore[misc]
                            raw.hget(b"ccs:job:" + entry.rpartition(b"|")[0], "worker") == mine
                            for entry in raw.zrange("ccs:running", 0, -1)
                        )
                        or whole_again(raw)
                    ),
                    30,
                )
                os.killpg(doomed.process.pid, signal.SIGKILL)
                doomed.process.wait(10)
        for one in pipelines:
            one.check(raw)
        wait_until(lambda: whole_again(raw), 40, "the last lease to end")
