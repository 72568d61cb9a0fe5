"""What a client sends and what it makes of the replies, without a server."""

from __future__ import annotations

import pytest
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ccs_broker.client.core import BULK_JOBS, ClientCore, bulk_answer
from ccs_broker.client.faults import checked, unavailable
from ccs_broker.client.link import connection_options
from ccs_broker.errors import (
    ConfigurationError,
    ConflictError,
    InternalError,
    InvalidInputError,
    NoSuitableWorkerError,
    NotFoundError,
    QueueFullError,
    QueueUnavailableError,
)
from ccs_broker.settings import LedgerSettings

CORE = ClientCore(LedgerSettings())


def drive(plan, *answers):
    """The asks of a plan that is given these answers, and its value."""
    asks = [next(plan)]
    try:
        for answer in answers:
            asks.append(plan.send(answer))
    except StopIteration as stop:
        return asks, stop.value
    raise AssertionError(f"goes on asking {asks[-1]}")


def prepare(modality="text", **options):
    return CORE.prepare(modality, {"prompt": "p", **options})


def test_a_job_without_media_is_one_script_call():
    asks, job_id = drive(CORE.submit(prepare()), [[b"ok", b"the-id"]])
    assert job_id == "the-id"
    assert [command[0] for command in asks[0].commands] == ["EVALSHA"]


def test_media_travel_ahead_of_the_script_in_the_same_round_trip():
    asks, _ = drive(CORE.submit(prepare("vision", images=[b"1", b"2", b"1"])), [b"OK", None, [b"ok", b"i"]])
    assert [command[0] for command in asks[0].commands] == ["SET", "SET", "EVALSHA"]


def test_a_script_that_the_server_lost_is_loaded_and_run_again():
    asks, job_id = drive(CORE.submit(prepare()), [NoScriptError()], [b"sha", [b"ok", b"i"]])
    assert asks[1].commands[0][:2] == ("SCRIPT", "LOAD")
    assert asks[1].commands[1] == asks[0].commands[0]
    assert job_id == "i"


def test_a_medium_that_went_before_the_script_is_sent_once_more():
    submission = prepare("vision", images=[b"1"])
    asks, job_id = drive(CORE.submit(submission), [None, [b"noblob", b"a" * 64]], [b"OK", [b"ok", b"i"]])
    assert asks[0] == asks[1]
    assert job_id == "i"
    with pytest.raises(NotFoundError, match="medium aaaaaaaaaaaa is not in the store"):
        drive(CORE.submit(submission), [None, [b"noblob", b"a" * 64]], [b"OK", [b"noblob", b"a" * 64]])


def test_a_reference_to_what_is_not_there_is_not_repeated():
    submission = prepare("vision", images=[{"sha256": "a" * 64, "size_bytes": 1}])
    with pytest.raises(NotFoundError):
        drive(CORE.submit(submission), [[b"noblob", b"a" * 64]])


@pytest.mark.parametrize(
    ("reply", "error", "told"),
    [
        ([b"conflict", b"old"], ConflictError, "was used for job old, with another body"),
        ([b"nomodel", b""], NoSuitableWorkerError, "no worker serves the model 'smol' for text"),
        ([b"gone", b""], InternalError, "publishing was answered with 'gone'"),
        (OutOfMemoryError("OOM command not allowed"), QueueFullError, "memory is used up"),
        (ReadOnlyError("READONLY"), QueueUnavailableError, "is a replica"),
        (NoPermissionError("NOPERM"), QueueUnavailableError, "does not permit"),
        (ResponseError("ERR secret things"), QueueUnavailableError, r"answered with an error \(ERR\)$"),
        (ResponseError(""), QueueUnavailableError, r"answered with an error \(\?\)$"),
    ],
)
def test_refusals(reply, error, told):
    with pytest.raises(error, match=told) as caught:
        drive(CORE.submit(prepare(model="smol")), [reply])
    assert type(caught.value) is error
    assert not getattr(caught.value, "maybe_accepted", False)


def test_an_upload_that_is_refused_is_told():
    with pytest.raises(QueueFullError):
        drive(
            CORE.submit(prepare("vision", images=[b"1"])),
            [OutOfMemoryError("OOM"), [b"noblob", b"a" * 64]],
        )


def test_a_bulk_submission_goes_out_in_chunks_and_keeps_the_order():
    submissions = CORE.prepare_many([{"modality": "text", "prompt": str(i)} for i in range(BULK_JOBS + 2)])
    first = [[b"ok", b"%d" % i] for i in range(BULK_JOBS)]
    first[3] = [b"conflict", b"x"]
    asks, found = drive(CORE.submit_many(submissions), first, [[b"ok", b"a"], OutOfMemoryError("OOM")])
    assert [len(ask.commands) for ask in asks] == [BULK_JOBS, 2]
    assert found[:3] == ["0", "1", "2"]
    assert found[-2] == "a"
    assert [type(found[i]) for i in (3, -1)] == [ConflictError, QueueFullError]
    with pytest.raises(ConflictError):
        bulk_answer(found, str.upper, return_errors=False)
    answer = bulk_answer(found, str.upper, return_errors=True)
    assert answer[-2] == "A"
    assert answer[3] is found[3]


def test_a_server_lost_midway_leaves_what_was_accepted_in_sight():
    submissions = CORE.prepare_many([{"modality": "text", "prompt": "p"}] * (2 * BULK_JOBS + 1))
    plan = CORE.submit_many(submissions)
    next(plan)
    plan.send([[b"ok", b"i"]] * BULK_JOBS)
    with pytest.raises(StopIteration) as end:
        plan.throw(QueueUnavailableError("away"))
    found = end.value.value
    assert found[:BULK_JOBS] == ["i"] * BULK_JOBS
    assert len(found) == len(submissions)
    with pytest.raises(QueueUnavailableError) as caught:
        bulk_answer(found, str, return_errors=False)
    assert caught.value.maybe_accepted


def test_a_bulk_submission_is_cut_by_bytes_too():
    jobs = [{"modality": "vision", "images": [bytes([i]) * 3_000_000]} for i in range(5)]
    plan = CORE.submit_many(CORE.prepare_many(jobs))
    assert len(next(plan).commands) == 6


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([{"modality": "text", "prompt": "p"}, {"modality": "text"}], "job 1: a text job needs a prompt"),
        ([{"prompt": "p"}], "job 0: modality: should be one of"),
    ],
)
def test_a_bad_job_of_many_is_named_before_any_is_sent(jobs, told):
    with pytest.raises(InvalidInputError, match=told):
        CORE.prepare_many(jobs)


def test_the_digest_is_of_the_body_alone():
    def digest(**options):
        return prepare(idempotency_key="k", **options).entry.digest

    assert digest(metadata={"a": 1, "b": 2}) == digest(metadata={"b": 2, "a": 1})
    different = [{"prompt": "q"}, {"seed": 1}, {"qos": "batch"}, {"deadline_s": 3}, {"metadata": {"a": None}}]
    assert len({digest(), *(digest(**each) for each in different)}) == 1 + len(different)
    assert prepare().entry.digest == ""


def test_tenants_can_not_name_each_others_keys():
    keys = {
        prepare(tenant=tenant, idempotency_key=key).entry.idempotency
        for tenant, key in (("a", "b:c"), ("a:b", "c"), ("a", "b%3Ac"), ("default", "k"))
    }
    assert len(keys) == 4
    assert "ccs:idem:default:k" in keys


@pytest.mark.parametrize("key", ["", "k" * 129, 5, "\ud800"])
def test_bad_idempotency_keys(key):
    with pytest.raises(InvalidInputError, match="idempotency_key: "):
        prepare(idempotency_key=key)


@pytest.mark.parametrize(
    ("error", "sent", "told"),
    [
        (RedisConnectionError(), False, "could not be reached"),
        (ConnectionRefusedError(), False, "could not be reached"),
        (RedisConnectionError(), True, "closed the connection"),
        (RedisTimeoutError(), True, "did not answer in time"),
        (TimeoutError(), False, "could not be reached in time"),
        (AuthenticationError(), False, "refused the login"),
    ],
)
def test_lost_replies_say_if_the_job_may_be_in(error, sent, told):
    found = unavailable(error, "host:1", sent=sent)
    assert str(found) == f"QUEUE_UNAVAILABLE: the server at host:1 {told}"
    assert found.maybe_accepted is sent


def test_replies_that_are_no_errors_pass():
    assert checked([b"x"]) == [b"x"]
    with pytest.raises(QueueUnavailableError):
        checked(ResponseError("WRONGTYPE x"))


def test_an_address_shows_no_password():
    _, options, where = connection_options("redis://me:secret@example.org:7000/3", 5.0)
    assert where == "example.org:7000"
    assert (options["password"], options["db"]) == ("secret", 3)
    assert connection_options("unix:///tmp/s.sock", 5.0)[2] == "/tmp/s.sock"


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:port/0",
        "redis://secret@[::1",
        "redis://h:1/0?nonsense=1",
        "redis://h:1/0?socket_timeout=secret",
    ],
)
def test_an_address_that_can_not_be_read(url):
    with pytest.raises(ConfigurationError, match="URL can't be read") as caught:
        connection_options(url, 5.0)
    assert "secret" not in str(caught.value)
