"""Quarantined jobs and dead letters on real servers: looked at, replayed once, purged; no prompt shown unasked."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ccs_broker import AsyncClient, Client
from ccs_broker.cli.group import ccs
from ccs_broker.errors import InvalidInputError, NoSuitableWorkerError, NotFoundError
from ccs_broker.settings import LedgerSettings
from ccs_broker.transport.message import dead_letter
from tests.helpers import wait_until
from tests.scripted_worker import ScriptedWorker
from tests.workers import simulated_models, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

    from ccs_broker.client import JobHandle
    from ccs_broker.server import EmbeddedServer

pytestmark = pytest.mark.redis

SECRET = "what nobody else may read"
GRACE_S = 60


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, ledger=LedgerSettings(blob_grace_s=GRACE_S)) as found:
        yield found


@pytest.fixture
def scripted(redis_url: str) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(redis_url) as found:
        yield found


@pytest.fixture
def run(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("CCS_REDIS_URL", redis_url)
    return lambda *arguments, **more: CliRunner().invoke(ccs, ["dead", *arguments], **more)


def quarantine(
    client: Client, scripted: ScriptedWorker, modality: str = "text", **options: object
) -> JobHandle:
    """A job that was taken and acknowledged without an outcome."""
    job = client.submit(modality, **{"prompt": SECRET, **options})  # type: ignore[arg-type]
    claim = scripted.claim(f"ccs.{modality}")
    assert scripted.ledger.ack(claim.id, claim.attempt) == "quarantined"
    pass_millisecond(scripted)
    return job


def bury(scripted: ScriptedWorker, *reasons: str) -> None:
    for reason in reasons:
        scripted.ledger.dead(dead_letter("ccs.text", reason, SECRET.encode(), 16))
        pass_millisecond(scripted)


def pass_millisecond(scripted: ScriptedWorker) -> None:
    """Lists go by the server's time in milliseconds: let what comes next have a later one."""

    def now_ms() -> int:
        seconds, micros = scripted.redis.time()
        return seconds * 1000 + micros // 1000

    began_ms = now_ms()
    wait_until(lambda: now_ms() > began_ms, 5)


def blob_life_s(scripted: ScriptedWorker, data: bytes) -> int:
    return int(scripted.redis.ttl(f"ccs:blob:{sha256(data).hexdigest()}"))


def test_a_quarantined_job_is_listed_with_its_reason(client: Client, scripted: ScriptedWorker) -> None:
    first = quarantine(client, scripted, tenant="acme")
    second = quarantine(client, scripted, "vision", images=[b"png"])
    client.submit("text", prompt="waits")
    report = client.dead()
    assert [job.id for job in report.jobs] == [second.id, first.id]
    told = report.jobs[1]
    assert (told.modality, told.tenant, told.code, told.attempts) == ("text", "acme", "INTERNAL", 1)
    assert told.message == "the delivery was acknowledged without an outcome"
    assert told.at_ms == first.status().finished_ms
    assert told.replayed_as is None
    assert client.dead(limit=1).more_jobs == 1
    assert client.dead_job(second.id).media_bytes == 3
    assert SECRET not in repr(report)


@pytest.mark.usefixtures("no_key_leaks")
def test_a_replay_runs_the_same_payload_once_as_a_new_job(
    client: Client, scripted: ScriptedWorker, redis_url: str, tmp_path: Path
) -> None:
    old = quarantine(client, scripted, max_new_tokens=6, seed=3, deadline_s=30)
    new = client.replay(old.id)
    assert new.id != old.id
    assert client.replay(old.id).id == new.id
    assert client.queues().waiting == 1
    assert client.dead().jobs[0].replayed_as == new.id
    with worker(redis_url, simulated_models(tmp_path)):
        outcome = new.result(timeout=20)
        undisturbed = client.submit("text", prompt=SECRET, max_new_tokens=6, seed=3).result(timeout=20)
    assert (outcome.state, outcome.text) == ("succeeded", undisturbed.text)
    assert client.replay(old.id).id == new.id
    assert [event.kind.value for event in old.stream()] == ["queued", "started", "quarantined"]
    assert old.result().state == "quarantined"
    assert sum(event.terminal for event in new.stream()) == 1


def test_the_replays_of_many_at_once_are_one_job(
    client: Client, scripted: ScriptedWorker, redis_url: str
) -> None:
    old = quarantine(client, scripted)

    async def replay_at_once() -> set[str]:
        async with AsyncClient(redis_url) as several:
            handles = await asyncio.gather(*(several.replay(old.id) for _ in range(20)))
            assert (await several.dead_job(old.id, raw=True)).payload is not None
            return {handle.id for handle in handles}

    assert len(asyncio.run(replay_at_once())) == 1
    assert client.queues().waiting == 1


@pytest.mark.usefixtures("no_key_leaks")
def test_a_replay_takes_its_media_along(client: Client, scripted: ScriptedWorker) -> None:
    old = quarantine(client, scripted, "vision", images=[b"a picture"])
    assert blob_life_s(scripted, b"a picture") > GRACE_S
    new = client.replay(old.id)
    assert client.purge([old.id]).jobs == 1
    assert blob_life_s(scripted, b"a picture") > GRACE_S
    claim = scripted.claim("ccs.vision")
    assert claim.id == new.id
    scripted.finish()
    assert 0 < blob_life_s(scripted, b"a picture") <= GRACE_S


@pytest.mark.usefixtures("no_key_leaks")
def test_a_replay_whose_medium_or_model_is_gone_changes_nothing(
    client: Client, scripted: ScriptedWorker
) -> None:
    pictured = quarantine(client, scripted, "vision", images=[b"a picture"])
    modeled = quarantine(client, scripted, model="smol")
    scripted.redis.delete(f"ccs:blob:{sha256(b'a picture').hexdigest()}")
    scripted.ledger.run(scripted.ledger.calls.report("w", "{}", 60, [("text", "other")]))
    with pytest.raises(NotFoundError, match="medium"):
        client.replay(pictured.id)
    with pytest.raises(NoSuitableWorkerError):
        client.replay(modeled.id)
    assert client.queues().waiting == 0
    assert {job.replayed_as for job in client.dead().jobs} == {None}


def test_what_is_not_quarantined_can_not_be_replayed(client: Client, scripted: ScriptedWorker) -> None:
    done = client.submit("text", prompt="p")
    scripted.claim()
    scripted.finish()
    waiting = client.submit("text", prompt="p")
    bury(scripted, "not JSON")
    for name in ("unknown", done.id, waiting.id):
        with pytest.raises(NotFoundError):
            client.replay(name)
    with pytest.raises(InvalidInputError):
        client.replay("letter:0")
    assert client.queues().waiting == 1
    assert client.purge([done.id, waiting.id, "unknown"]).jobs == 0
    assert scripted.claim().payload


@pytest.mark.usefixtures("no_key_leaks")
def test_a_purge_drops_payload_and_media_and_leaves_the_outcome(
    client: Client, scripted: ScriptedWorker
) -> None:
    shared, job = (quarantine(client, scripted, "vision", images=[b"both"]) for _ in range(2))
    assert client.purge([job.id]).jobs == 1
    assert blob_life_s(scripted, b"both") > GRACE_S
    assert client.purge([job.id]).jobs == 0
    assert client.purge([shared.id]).jobs == 1
    assert 0 < blob_life_s(scripted, b"both") <= GRACE_S
    assert client.dead().jobs == ()
    assert scripted.redis.zcard("ccs:quarantined") == 0
    assert not scripted.redis.hexists(f"ccs:job:{job.id}", "job")
    assert job.result().state == "quarantined"
    for action in (client.dead_job, client.replay):
        with pytest.raises(NotFoundError, match="was purged"):
            action(job.id)


@pytest.mark.usefixtures("no_key_leaks")
def test_a_record_that_expired_is_not_listed_and_is_purged_with_all(
    client: Client, scripted: ScriptedWorker
) -> None:
    gone, kept = (quarantine(client, scripted) for _ in range(2))
    scripted.redis.delete(f"ccs:job:{gone.id}")
    assert [job.id for job in client.dead().jobs] == [kept.id]
    scripted.ledger.run(scripted.ledger.calls.replayed(gone.id, "new"))
    assert not scripted.redis.exists(f"ccs:job:{gone.id}")
    assert client.purge("all").jobs == 1
    assert scripted.redis.exists("ccs:quarantined") == 0


def test_a_purge_works_when_the_servers_memory_is_used_up(private_server: EmbeddedServer) -> None:
    with Client(private_server.url) as client, ScriptedWorker(private_server.url) as scripted:
        job = quarantine(client, scripted, "vision", images=[b"picture"])
        bury(scripted, "a", "b")
        scripted.redis.config_set("maxmemory", 1)
        purged = client.purge([job.id], [0])
        assert (purged.jobs, purged.letters) == (1, 1)
        assert client.purge("all", "all").letters == 1


@pytest.mark.usefixtures("no_key_leaks")
def test_letters_keep_their_index_while_others_come_in(client: Client, scripted: ScriptedWorker) -> None:
    bury(scripted, *"abc")
    assert [(each.index, each.reason) for each in client.dead().letters] == [(2, "c"), (1, "b"), (0, "a")]
    bury(scripted, "d")
    assert client.dead_letter(1).letter.reason == "b"
    assert client.dead(limit=2).more_letters == 2
    assert client.purge(letters=[0, 2, 9]).letters == 2
    assert [(each.index, each.reason) for each in client.dead().letters] == [(1, "d"), (0, "b")]
    with pytest.raises(NotFoundError, match="no letter:2"):
        client.dead_letter(2)
    assert client.dead_letter(0, raw=True).raw == SECRET.encode()[:16]


@pytest.mark.usefixtures("no_key_leaks")
def test_the_commands_show_no_prompt_unless_asked(
    run: Callable[..., Result], client: Client, scripted: ScriptedWorker
) -> None:
    job = quarantine(client, scripted, metadata={"note": SECRET}, stop=SECRET)
    bury(scripted, "not JSON")
    for arguments in (("list",), ("list", "--json"), ("show", job.id), ("show", "letter:0")):
        for shown in (run(*arguments), run(*arguments, "--json")):
            assert shown.exit_code == 0, shown.output
            assert SECRET[:8] not in shown.output
    table = run("list").stdout
    assert job.id in table
    assert "INTERNAL: the delivery was acknowledged without an outcome" in table
    assert "letter:0" in table
    listing = json.loads(run("list", "--json").stdout)
    assert [each["id"] for each in listing["jobs"]] == [job.id]
    assert listing["letters"] == [
        {"index": 0, "queue": "ccs.text", "reason": "not JSON", "size_bytes": len(SECRET)}
    ]
    assert json.loads(run("show", job.id, "--json", "--raw").stdout)["payload"]["parts"][0]["text"] == SECRET
    assert SECRET in run("show", job.id, "--raw").stdout
    assert run("show", "letter:0", "--raw").stdout.endswith(SECRET[:16] + "\n")


def test_the_commands_replay_and_purge(
    run: Callable[..., Result], client: Client, scripted: ScriptedWorker
) -> None:
    jobs = [quarantine(client, scripted) for _ in range(3)]
    bury(scripted, *"abc")
    replayed = run("replay", jobs[0].id, jobs[1].id).stdout.split()
    assert [client.job(new).status().state for new in replayed] == ["waiting", "waiting"]
    (again,) = map(json.loads, run("replay", jobs[0].id, "--json").stdout.splitlines())
    assert again == {"id": jobs[0].id, "replayed_as": replayed[0]}
    assert replayed[0] in run("list").stdout
    assert run("purge", jobs[0].id, "letter:1").stdout == "purged 1 jobs and 1 letters\n"
    absent = run("purge", jobs[0].id, jobs[1].id)
    assert (absent.exit_code, absent.stdout) == (1, "purged 1 jobs and 0 letters\n")
    assert "error: NOT_FOUND: 1 of 2" in absent.stderr
    refused = run("purge", "--all", input="n\n")
    assert (refused.exit_code, refused.stdout) == (130, "")
    assert len(client.dead().jobs) == 1
    assert json.loads(run("purge", "--all", "--yes", "--json").stdout) == {"jobs": 1, "letters": 2}
    empty = run("list")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "nothing is quarantined" in empty.stderr
    assert client.queues().waiting == 2


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("purge",), 2, "INVALID_INPUT"),
        (("purge", "--all", "some-id"), 2, "INVALID_INPUT"),
        (("show", "letter:x"), 2, "INVALID_INPUT"),
        (("show", "letter:0"), 1, "NOT_FOUND"),
        (("show", "unknown"), 1, "NOT_FOUND"),
        (("replay", "unknown"), 1, "NOT_FOUND"),
        (("replay", "letter:0"), 2, "INVALID_INPUT"),
    ],
)
def test_wrong_requests(
    run: Callable[..., Result], arguments: tuple[str, ...], status: int, code: str
) -> None:
    shown = run(*arguments, "--json")
    assert shown.exit_code == status
    assert json.loads(shown.stdout)["error"]["code"] == code
