"""Pipelines on a real worker: one id, one stream and one end, whatever becomes of their steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from ccs_broker import Client
from ccs_broker.cli.group import ccs
from ccs_broker.errors import InvalidInputError
from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from tests.helpers import wait_until
from tests.workers import RunningWorker, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_broker.client import PipelineHandle
    from ccs_broker.contract import Event, Outcome

pytestmark = pytest.mark.redis

MODELS = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
context_tokens = 60
[models.slow]
modality = "text"
engine = "simulated"
tokens_per_second = 10
[models.eyes]
modality = "vision"
engine = "simulated"
tokens = 4
[models.ears]
modality = "audio"
engine = "simulated"
tokens = 4
"""
#: More than the context of the default model: fails when it runs.
FAILS = {"prompt": "too long", "max_new_tokens": 100}


@pytest.fixture(scope="module")
def url(server_kind: str) -> Iterator[str]:
    """A server for all tests here, as their worker lives as long."""
    with EmbeddedServer(binary=server_binaries()[server_kind]) as server:
        yield server.url


@pytest.fixture(scope="module")
def running(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    models = tmp_path_factory.mktemp("pipelines") / "models.toml"
    models.write_text(MODELS)
    with worker(url, models, environment={"CCS_SWEEP_S": "0.2"}) as found:
        yield found


@pytest.fixture
def client(url: str, running: RunningWorker) -> Iterator[Client]:
    assert running.process.poll() is None
    with Client(url) as found:
        yield found


def followed(pipeline: PipelineHandle) -> tuple[list[Event], Outcome]:
    """All of a stream, without holes and with one end, and the outcome."""
    events = list(pipeline.stream(timeout=20))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.terminal for event in events].count(True) == 1
    outcome = pipeline.result(timeout=5)
    assert events[-1].kind == outcome.state
    assert events[-1].step is None
    return events, outcome


def text_of(events: list[Event], step: str) -> str:
    return "".join(event.text for event in events if event.step == step and event.kind == "delta")


def states(outcome: Outcome) -> dict[str, str]:
    steps: Any = outcome.data["steps"]
    return {name: step["state"] for name, step in steps.items()}


def test_a_step_takes_the_texts_of_earlier_ones(client):
    pipeline = (
        client.pipeline(qos="interactive", tenant="acme")
        .step("heard", "audio", audio=b"RIFF....")
        .step("seen", "vision", images=[b"\x89PNG"], prompt="")
        .step(
            "told", "text", prompt="heard: {heard.text}; seen: {seen.text}; {{seen.text}}", max_new_tokens=5
        )
        .submit()
    )
    events, outcome = followed(pipeline)
    assert outcome.ok
    parts = {name: pipeline.step(name).result(5) for name in ("heard", "seen", "told")}
    assert {name: text_of(events, name) for name in parts} == {
        name: part.text for name, part in parts.items()
    }
    assert outcome.text == parts["told"].text
    # The simulated text model says what follows from its prompt alone.
    prompt = f"heard: {parts['heard'].text}; seen: {parts['seen'].text}; {{seen.text}}"
    alone = client.submit("text", prompt=prompt, max_new_tokens=5, seed=0).result(10)
    assert parts["told"].usage.prompt_tokens == alone.usage.prompt_tokens
    assert outcome.usage.completion_tokens == sum(part.usage.completion_tokens for part in parts.values())
    assert outcome.timings.finished_s >= outcome.timings.first_output_s >= outcome.timings.started_s >= 0
    begun = [event.step for event in events if event.kind == "started"]
    assert set(begun[:2]) == {"heard", "seen"}
    assert begun[2:] == ["told"]
    assert pipeline.status().state == "succeeded"


def test_attach_from_anywhere_and_read_again(client):
    pipeline = client.pipeline().step("a", "text", prompt="one").step("b", "text", prompt="{a.text}").submit()
    whole, _ = followed(pipeline)
    again = client.job(pipeline.id)
    assert list(again.stream(after=0, timeout=5)) == whole
    assert list(again.stream(after=4, timeout=5)) == whole[4:]


def test_output_names_the_step_whose_text_counts(client):
    pipeline = client.pipeline(output="a").step("a", "text", prompt="one", max_new_tokens=3)
    found = pipeline.step("b", "text", prompt="{a.text}", max_new_tokens=3).submit()
    assert found.result(10).text == found.step("a").result(1).text


def test_a_failure_ends_all_of_it(client, url):
    pipeline = (
        client.pipeline()
        .step("slow", "text", model="slow", prompt="on and on", max_new_tokens=200)
        .step("bad", "text", **FAILS)
        .step("never", "text", prompt="{slow.text} {bad.text}")
        .submit()
    )
    events, outcome = followed(pipeline)
    assert outcome.state == "failed"
    assert outcome.error.code == "CONTEXT_TOO_LONG"
    assert outcome.error.message.startswith("step 'bad': ")
    assert states(outcome) == {"slow": "cancelled", "bad": "failed", "never": "cancelled"}
    assert {event.step for event in events} == {None, "slow", "bad"}
    with redis.Redis.from_url(url) as raw:
        assert not raw.exists(f"ccs:job:{pipeline.id}-never")


def test_a_default_takes_the_place_of_a_failure(client):
    pipeline = (
        client.pipeline()
        .step("bad", "text", on_failure="default", default="nothing, {heard.text}", **FAILS)
        .step("told", "text", prompt="it said: {bad.text}", max_new_tokens=5)
        .submit()
    )
    _, outcome = followed(pipeline)
    assert states(outcome) == {"bad": "defaulted", "told": "succeeded"}
    assert outcome.data["steps"]["bad"]["code"] == "CONTEXT_TOO_LONG"
    # it said: nothing, {heard.text}
    assert pipeline.step("told").result(1).usage.prompt_tokens == 4


def test_a_defaulted_output_is_the_default(client):
    pipeline = client.pipeline().step("bad", "text", on_failure="default", default="sorry", **FAILS).submit()
    _, outcome = followed(pipeline)
    assert (outcome.state, outcome.text) == ("succeeded", "sorry")


def test_what_takes_a_skipped_text_is_skipped_and_the_rest_goes_on(client):
    pipeline = (
        client.pipeline()
        .step("bad", "text", on_failure="skip", **FAILS)
        .step("takes", "text", prompt="{bad.text}")
        .step("takes_that", "text", prompt="{takes.text}")
        .step("waits", "text", prompt="by itself", after="bad", max_new_tokens=3)
        .step("last", "text", prompt="{waits.text}", after=["takes_that"], max_new_tokens=3)
        .submit()
    )
    _, outcome = followed(pipeline)
    assert outcome.ok
    assert states(outcome) == {
        "bad": "skipped", "takes": "skipped", "takes_that": "skipped", "waits": "succeeded", "last": "succeeded",
    }  # fmt: skip
    assert outcome.text == pipeline.step("last").result(1).text
    assert pipeline.step("takes").result(1).attempts == 0


def test_a_step_without_a_worker_for_its_model_fails(client):
    pipeline = client.pipeline().step("a", "text", prompt="one", model="nobody").submit()
    _, outcome = followed(pipeline)
    assert (outcome.state, outcome.error.code) == ("failed", "NO_SUITABLE_WORKER")


def test_a_text_that_is_too_long_to_be_taken_fails_the_step_that_takes_it(client):
    pipeline = client.pipeline()
    pipeline.step(
        "a", "text", prompt="x " * 20, max_new_tokens=20, on_failure="default", default="y" * 600_000
    )
    pipeline.step("b", "text", on_failure="default", default="y" * 600_000, **FAILS)
    pipeline.step("c", "text", on_failure="default", default="y" * 600_000, **FAILS)
    pipeline.step("d", "text", prompt="{b.text}{c.text}")
    _, outcome = followed(pipeline.submit())
    assert (outcome.state, outcome.error.code) == ("failed", "PAYLOAD_TOO_LARGE")
    assert outcome.error.message.startswith("step 'd': the prompt has 1200000 bytes")


def test_cancelling_frees_every_slot_and_starts_nothing(client, url):
    pipeline = client.pipeline()
    for name in ("a", "b", "c"):
        pipeline.step(name, "text", model="slow", prompt=name, max_new_tokens=500)
    found = pipeline.step("last", "text", prompt="{a.text} {b.text} {c.text}").submit()
    begun = set()
    for event in found.stream(timeout=20):
        begun |= {event.step} if event.kind == "delta" else set()
        if len(begun) == 3:
            break
    assert found.cancel() == "cancelling"
    assert found.status().state in {"cancelling", "cancelled"}
    events, outcome = followed(found)
    assert outcome.state == "cancelled"
    assert states(outcome) == dict.fromkeys(("a", "b", "c", "last"), "cancelled")
    asked = [event.seq for event in events if event.kind == "progress"]
    # Two steps of the engine at most between one end and the next.
    assert len([event for event in events[asked[0] :] if event.kind == "delta"]) <= 4
    with redis.Redis.from_url(url) as raw:
        assert not raw.exists(f"ccs:job:{found.id}-last")
        wait_until(lambda: not raw.zcard("ccs:running"), 5, "every lease to end")
    assert found.cancel() == "cancelled"


def test_a_deadline_ends_all_of_it(client):
    pipeline = client.pipeline(deadline_s=1.0)
    pipeline.step("a", "text", model="slow", prompt="a", max_new_tokens=500)
    pipeline.step("b", "text", prompt="{a.text}")
    _, outcome = followed(pipeline.submit())
    assert (outcome.state, outcome.error.code) == ("expired", "DEADLINE_EXCEEDED")
    assert states(outcome) == {"a": "expired", "b": "cancelled"}


def test_a_step_that_is_cancelled_alone_counts_as_its_policy_says(client):
    pipeline = client.pipeline()
    pipeline.step(
        "a", "text", model="slow", prompt="a", max_new_tokens=500, on_failure="default", default="none"
    )
    found = pipeline.step("b", "text", prompt="{a.text}", max_new_tokens=3).submit()
    wait_until(lambda: found.status().state == "running", 10)
    found.step("a").cancel()
    _, outcome = followed(found)
    assert states(outcome) == {"a": "defaulted", "b": "succeeded"}


def test_the_command_line_shows_who_speaks(client, url, monkeypatch):
    monkeypatch.setenv("CCS_REDIS_URL", url)
    pipeline = client.pipeline().step("a", "text", prompt="one", max_new_tokens=2)
    pipeline.step("bad", "text", after="a", on_failure="default", default="-", **FAILS)
    found = pipeline.step("b", "text", prompt="{a.text} {bad.text}", max_new_tokens=2).submit()
    found.result(10)
    shown = CliRunner().invoke(ccs, ["stream", found.id])
    texts = {name: found.step(name).result(1).text for name in ("a", "b")}
    assert shown.stdout == f"[a] {texts['a']}\n[b] {texts['b']}\n"
    assert "[step bad: failed CONTEXT_TOO_LONG]" in shown.stderr
    told = [
        json.loads(line)
        for line in CliRunner().invoke(ccs, ["stream", found.id, "--json"]).stdout.splitlines()
    ]
    # The outcome is the last line.
    assert [event.get("step") for event in told[:-1]] == [event.step for event in found.stream(timeout=5)]
    status = CliRunner().invoke(ccs, ["status", found.id])
    assert status.exit_code == 0
    assert "succeeded" in status.stdout


def test_what_is_wrong_is_said_before_anything_is_sent(client):
    for wrong, message in (
        (lambda p: p.submit(), "at least one step"),
        (lambda p: p.step("A", "text", prompt="x"), "lower-case"),
        (lambda p: p.step("a", "text", prompt="{b.text}"), "this is the first"),
        (lambda p: p.step("a", "text", prompt="x").step("a", "text", prompt="x"), "this name already"),
        (lambda p: p.step("a", "text", prompt="x", after="zz"), "'zz'"),
        (lambda p: p.step("a", "text", prompt="x", qos="batch"), "qos is said for the whole pipeline"),
        (lambda p: p.step("a", "text", prompt="x", on_failure="default"), "default"),
        (lambda p: p.step("a", "text", prompt="x", default="y"), "default"),
        (lambda p: p.step("a", "text", prompt="x", on_failure="retry"), "on_failure"),
        (lambda p: p.step("a", "vision", prompt="x"), "at least one image"),
        (lambda p: p.step("a", "text", prompt="x", colour=1), "colour"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            wrong(client.pipeline())
    with pytest.raises(InvalidInputError, match="output"):
        client.pipeline(output="z").step("a", "text", prompt="x").submit()
    with pytest.raises(InvalidInputError, match="deadline_s"):
        client.pipeline(deadline_s=-1)
    with pytest.raises(InvalidInputError, match="unknown argument 'steps'"):
        client.pipeline(steps=3)
    twice = client.pipeline().step("a", "text", prompt="x")
    twice.submit()
    with pytest.raises(InvalidInputError, match="submitted before"):
        twice.submit()
