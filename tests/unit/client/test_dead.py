"""What the client asks about quarantined jobs and dead letters, and what it makes of odd replies."""

from __future__ import annotations

import json

import pytest
from redis.exceptions import NoScriptError, OutOfMemoryError

from ccs_broker.client import dead
from ccs_broker.client.core import ClientCore
from ccs_broker.errors import InvalidInputError, NotFoundError, QueueFullError
from ccs_broker.settings import LedgerSettings
from ccs_broker.transport.message import dead_letter

CORE = ClientCore(LedgerSettings())
ERROR = {"code": "ENGINE_LOST", "message": "signal 9", "retryable": False}
PAYLOAD = CORE.prepare("text", {"prompt": "SECRET", "tenant": "acme", "deadline_s": 9}).entry.payload


def drive(plan, *answers):
    """The asks of a plan that is given these answers, and its value."""
    asks = [next(plan)]
    try:
        for answer in answers:
            asks.append(plan.send(answer))
    except StopIteration as stop:
        return asks, stop.value
    raise AssertionError(f"goes on asking {asks[-1]}")


def record(**fields):
    """A reply to the question for a quarantined job's fields, in the order in which they are asked for."""
    known = {
        "kind": b"job", "state": b"quarantined", "seq": b"9", "queue": b"ccs.text", "attempt": b"3",
        "worker": b"w", "sub": b"1000", "start": b"1500", "end": b"2000", "expire": b"9000", "job": PAYLOAD,
        "outcome": json.dumps({"state": "quarantined", "error": ERROR}).encode(), "crashes_alone": b"3",
    }  # fmt: skip
    known |= fields
    asked = next(dead.job_details("j", raw=False)).commands[0][2:]
    assert set(known) <= set(asked)
    return [known.get(name) for name in asked]


def letter(reason="not JSON", raw=b"junk", limit_bytes=64):
    return dead_letter("ccs.text", reason, raw, limit_bytes).encode()


def test_a_listing_tells_why_a_job_is_there_and_nothing_of_its_prompt():
    _, report = drive(
        dead.listed(9), [2, [b"j", b"gone"], 0], [record(replayed_as=b"new"), [None] * len(record())]
    )
    (job,) = report.jobs
    assert (job.id, job.at_ms, job.modality, job.model, job.tenant) == ("j", 2000, "text", None, "acme")
    assert (job.code, job.message, job.attempts, job.replayed_as) == ("ENGINE_LOST", "signal 9", 3, "new")
    assert "SECRET" not in repr(report)


def test_a_listing_is_read_in_pages_and_says_what_it_left_out():
    letters = [letter(str(index)) for index in range(30)]
    first, second = letters[29:13:-1], letters[13:9:-1]
    asks, report = drive(
        dead.listed(20), [25, [b"%d" % n for n in range(20)], 30], [record()] * 16, [record()] * 4, [first], [second]
    )  # fmt: skip
    assert [len(ask.commands) for ask in asks] == [3, 16, 4, 1, 1]
    assert [ask.commands[0] for ask in asks[3:]] == [
        ("LRANGE", "ccs:dead", -30, -15),
        ("LRANGE", "ccs:dead", -14, -11),
    ]
    assert (len(report.jobs), report.more_jobs) == (20, 5)
    assert [(each.index, each.reason) for each in report.letters] == [(n, str(n)) for n in range(29, 9, -1)]
    assert report.more_letters == 10


def test_letters_purged_while_they_are_listed_keep_the_indexes_of_the_others_right():
    _, report = drive(dead.listed(9), [0, [], 3], [[letter("1"), letter("0")]])
    assert [(each.index, each.reason) for each in report.letters] == [(1, "1"), (0, "0")]


@pytest.mark.parametrize("item", [b"\xff", b"[]", b"{}", b'{"raw":5}', b'{"size_bytes":"x"}', b'{"raw":"?"}'])
def test_anything_may_lie_among_the_letters(item):
    _, report = drive(dead.listed(9), [0, [], 1], [[item]])
    (found,) = report.letters
    assert (found.index, found.queue, found.size_bytes) == (0, "?", len(item))


def test_a_jobs_payload_is_given_when_asked_for_only():
    _, plain = drive(dead.job_details("j", raw=False), [record()])
    _, full = drive(dead.job_details("j", raw=True), [record()])
    assert plain.payload is None
    assert full.payload == json.loads(PAYLOAD)
    assert "SECRET" not in repr(full)
    assert (plain.qos, plain.text_chars, plain.media, plain.crashes_alone) == ("standard", 6, 0, 3)
    assert (plain.submitted_ms, plain.started_ms, plain.worker) == (1000, 1500, "w")


def test_media_are_counted():
    entry = CORE.prepare("vision", {"images": [b"one", b"three"]}).entry
    _, found = drive(dead.job_details("j", raw=False), [record(job=entry.payload, queue=b"ccs.vision")])
    assert (found.job.modality, found.media, found.media_bytes) == ("vision", 2, 8)


def test_a_letters_bytes_are_given_when_asked_for_only():
    item = letter(raw=b"SECRET bytes", limit_bytes=6)
    asks, plain = drive(dead.letter_details(4, raw=False), [item])
    _, full = drive(dead.letter_details(4, raw=True), [item])
    assert asks[0].commands == (("LINDEX", "ccs:dead", -5),)
    assert (plain.letter.size_bytes, plain.kept_bytes, plain.raw) == (12, 6, None)
    assert full.raw == b"SECRET"
    assert "SECRET" not in repr(full)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ([None] * len(record()), "there is no job 'j'"),
        (record(job=None), "was purged"),
        (record(state=b"succeeded", job=None), "isn't quarantined, it is succeeded"),
        (record(state=b"running"), "isn't quarantined, it is running"),
    ],
)
def test_what_is_not_quarantined_is_neither_shown_nor_replayed(reply, told):
    for plan in (dead.job_details("j", raw=False), dead.replay(CORE, "j")):
        with pytest.raises(NotFoundError, match=told):
            drive(plan, [reply])


def test_a_replay_is_the_same_job_under_a_new_id_and_a_key_made_from_the_old():
    asks, new_id = drive(dead.replay(CORE, "old"), [record()], [[b"ok", b"new"]], [1])
    assert new_id == "new"
    (publish,), (note,) = asks[1].commands, asks[2].commands
    keys, args = publish[3 : 3 + publish[2]], publish[3 + publish[2] :]
    sent = json.loads(args[4])
    assert keys[0] == f"ccs:job:{sent['id']}"
    assert sent["id"] != json.loads(PAYLOAD)["id"]
    assert {**sent, "id": ""} == {**json.loads(PAYLOAD), "id": ""}
    assert "ccs:idem:~replay:old" in args
    assert note[3:] == ("ccs:job:old", "new")


def test_no_tenant_can_name_the_key_of_a_replay():
    with pytest.raises(InvalidInputError):
        CORE.prepare("text", {"prompt": "p", "tenant": "~replay", "idempotency_key": "old"})


def test_a_replay_keeps_the_references_to_its_media():
    entry = CORE.prepare("vision", {"images": [b"one", b"two"]}).entry
    asks, _ = drive(dead.replay(CORE, "j"), [record(job=entry.payload)], [[b"ok", b"new"]], [1])
    assert " ".join(entry.blobs) in asks[1].commands[0]
    with pytest.raises(NotFoundError, match="medium aaaaaaaaaaaa is not in the store"):
        drive(dead.replay(CORE, "j"), [record(job=entry.payload)], [[b"noblob", b"a" * 64]])


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b'{"invalid":{"code":"INVALID_INPUT","message":"m"}}', "was refused when it came in"),
        (b"broken", "is not JSON"),
        (PAYLOAD.replace(b'"v":1', b'"v":9'), "wire version"),
    ],
)
def test_what_can_not_run_is_not_replayed(payload, told):
    with pytest.raises(InvalidInputError, match=told):
        drive(dead.replay(CORE, "j"), [record(job=payload)])


def test_a_letter_is_not_replayed_and_the_server_not_asked():
    with pytest.raises(InvalidInputError, match="letter:3 was never understood"):
        next(dead.replay(CORE, "letter:3"))


def test_a_purge_counts_what_was_there_and_loads_a_lost_script():
    asks, purged = drive(dead.purge(CORE, ["a", "b", "a"], ()), [NoScriptError(), 0], [b"sha", 1])
    assert [command[3] for command in asks[0].commands] == ["ccs:job:a", "ccs:job:b"]
    assert (purged.jobs, purged.letters) == (1, 0)


def test_letters_are_purged_by_what_they_are():
    items = [letter("0"), None, letter("2")]
    asks, purged = drive(dead.purge(CORE, (), [2, 0, 1, 2]), items, [1, 0])
    assert [command[2] for command in asks[0].commands] == [-1, -2, -3]
    assert asks[1].commands == tuple(("LREM", "ccs:dead", -1, item) for item in (items[0], items[2]))
    assert purged.letters == 1


def test_everything_is_purged_in_pages():
    ids = [b"%d" % n for n in range(300)]
    asks, purged = drive(dead.purge(CORE, "all", "all"), [ids], [1] * 256, [1] * 44, [7, 1])
    assert [len(ask.commands) for ask in asks] == [1, 256, 44, 2]
    assert (purged.jobs, purged.letters) == (300, 7)


@pytest.mark.parametrize(("jobs", "letters"), [("some-id", ()), ((), [-1])])
def test_bad_purges_ask_for_nothing(jobs, letters):
    with pytest.raises(InvalidInputError):
        next(dead.purge(CORE, jobs, letters))


def test_bad_looks_ask_for_nothing():
    for plan in (dead.listed(0), dead.letter_details(-1, raw=False)):
        with pytest.raises(InvalidInputError):
            next(plan)


def test_a_refusing_server_is_told():
    with pytest.raises(QueueFullError):
        drive(dead.replay(CORE, "j"), [record()], [OutOfMemoryError("OOM")])
    with pytest.raises(QueueFullError):
        drive(dead.purge(CORE, ["a"], ()), [OutOfMemoryError("OOM")])
