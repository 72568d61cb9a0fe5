"""Fusion jobs: answered by a model that takes them, or by a plan of those that there are, which says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ccs_broker import AsyncClient, Client
from ccs_broker.errors import ConflictError, InvalidInputError
from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from tests.integration.test_pipelines import MODELS, followed, states
from tests.workers import worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.redis

PICTURE, SOUND = b"\x89PNG", b"RIFF...."
FUSION = """
[models.all]
modality = "fusion"
engine = "simulated"
"""


@pytest.fixture(scope="module")
def url(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("fusion") / "models.toml"
    models.write_text(MODELS.replace("context_tokens = 60", ""))
    with EmbeddedServer(binary=server_binaries()[server_kind]) as server, worker(server.url, models):
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as found:
        yield found


def test_without_a_model_for_all_parts_a_plan_answers(client):
    job = client.submit(
        "fusion",
        prompt="What is {seen.text} about?",
        images=[PICTURE, PICTURE],
        audio=[SOUND, SOUND],
        qos="interactive",
        max_new_tokens=7,
        seed=3,
        temperature=0.5,
    )
    _, outcome = followed(job)
    assert outcome.ok
    assert states(outcome) == dict.fromkeys(("seen", "heard_1", "heard_2", "answer"), "succeeded")
    assert outcome.data["plan"] == {
        "note": (
            "no model served takes these parts together: a text model made the answer from text read in the pictures,"
            " labels of a classifier, and transcripts"
        ),
        "steps": [
            {"step": "seen", "modality": "vision"},
            {"step": "heard_1", "modality": "audio"},
            {"step": "heard_2", "modality": "audio"},
            {"step": "answer", "modality": "text", "takes": ["seen", "heard_1", "heard_2"]},
        ],
    }
    parts = {name: job.step(name).result(5) for name in ("seen", "heard_1", "heard_2", "answer")}
    assert outcome.text == parts["answer"].text
    # What the simulated text model says depends on its prompt and its seed alone.
    prompt = (
        f"What is {{seen.text}} about?\n\nText that was read in the pictures:\n{parts['seen'].text}\n\n"
        "Labels that a classifier gave the pictures, with their scores: \n\n"
        f"What is said in sound 1:\n{parts['heard_1'].text}\n\nWhat is said in sound 2:\n{parts['heard_2'].text}"
    )
    same = client.submit("text", prompt=prompt, max_new_tokens=7, seed=3, temperature=0.5).result(10)
    assert same.text == outcome.text


def test_the_same_submission_is_the_same_plan(client):
    def submit(prompt):
        return client.submit(
            "fusion", prompt=prompt, images=[PICTURE], idempotency_key="again", tenant="acme"
        )

    first, second = submit("one"), submit("one")
    assert first.id == second.id
    assert followed(first)[1].ok
    assert submit("one").id == first.id
    with pytest.raises(ConflictError, match=first.id):
        submit("two")


def test_from_an_event_loop(url):
    async def ask():
        async with AsyncClient(url) as client:
            job = await client.submit("fusion", prompt="What?", audio=SOUND, images=PICTURE)
            return [event async for event in job.stream(timeout=20)], await job.result(5)

    events, outcome = asyncio.run(ask())
    assert outcome.ok
    assert {event.step for event in events} == {None, "seen", "heard", "answer"}


def test_what_a_plan_can_t_do_is_said(client):
    with pytest.raises(InvalidInputError, match="can't be refused"):
        client.submit("fusion", prompt="x", images=[PICTURE], overload="refuse")
    with pytest.raises(InvalidInputError, match="two parts"):
        client.submit("fusion", prompt="x")


def test_a_model_that_takes_all_parts_answers_by_itself(redis_url: str, tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(MODELS + FUSION)
    with worker(redis_url, models), Client(redis_url) as client:
        outcome = client.submit("fusion", prompt="What?", images=[PICTURE], max_new_tokens=4).result(20)
        assert (outcome.state, outcome.model) == ("succeeded", "all")
        assert "plan" not in outcome.data
        named = client.submit("fusion", prompt="What?", images=[PICTURE], model="all", max_new_tokens=4)
        assert named.result(20).model == "all"
