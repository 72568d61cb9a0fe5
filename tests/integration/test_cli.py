"""The client's commands against a real server and a worker that is as small as one can be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from typing import IO, TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ccs_broker.cli.group import ccs
from ccs_broker.client import Client
from ccs_broker.contract import Event
from tests import tiny_worker
from tests.helpers import running, wait_until
from tests.tiny_worker import REPORT, TEXT, TinyWorker

if TYPE_CHECKING:
    from collections.abc import Iterator

CCS = [sys.executable, "-m", "ccs_broker.cli"]


@pytest.fixture
def tiny(redis_url: str) -> Iterator[TinyWorker]:
    worker = TinyWorker(redis_url)
    yield worker
    worker.stop()


@pytest.fixture
def errors(tmp_path) -> Iterator[IO[str]]:
    """Where a process writes what would go to standard error."""
    with (tmp_path / "stderr").open("w+") as file:
        yield file


@pytest.fixture
def run(redis_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CCS_REDIS_URL", redis_url)
    return lambda *arguments, **more: CliRunner().invoke(ccs, list(arguments), **more)


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("no_key_leaks")
def test_submit_prints_the_id_and_everything_else_follows_from_it(run, tiny):
    job = run("submit", "text", "Which?").stdout.strip()
    shown = run("result", job)
    assert (shown.exit_code, shown.stdout) == (0, TEXT + "\n")
    assert "succeeded, 4 tokens, first output 0." in shown.stderr
    assert "worker tiny@here, attempt 1" in shown.stderr
    assert run("stream", job).stdout == TEXT + "\n"
    assert ["state", "succeeded"] in [line.split() for line in run("status", job).stdout.splitlines()]
    assert run("cancel", job).stdout == f"{job} succeeded\n"


@pytest.mark.usefixtures("no_key_leaks")
def test_every_option_of_submit_arrives_in_the_job(run, tiny, tmp_path):
    image, other = tmp_path / "page.png", tmp_path / "other.png"
    image.write_bytes(b"png one")
    other.write_bytes(b"png two")
    run(
        "submit", "vision", "What is it?", "--image", str(image), "--image", str(other), "--model", "eye",
        "--qos", "interactive", "--deadline", "1m", "--tenant", "acme", "--max-new-tokens", "7",
        "--temperature", "0.5", "--top-p", "0.9", "--top-k", "40", "--repetition-penalty", "1.2", "--seed", "11",
        "--stop", "END", "--stop", "\n\n", "--metadata", "user=ann", "--metadata", "note=a=b", "--wait",
    )  # fmt: skip
    (job,) = tiny.jobs
    assert (job.modality, job.prompt, job.model, job.qos) == ("vision", "What is it?", "eye", "interactive")
    assert [image.sha256 for image in job.images] == [sha256(b).hexdigest() for b in (b"png one", b"png two")]
    assert (job.deadline_s, job.tenant, dict(job.metadata)) == (60.0, "acme", {"user": "ann", "note": "a=b"})
    drawn = job.sampling
    assert (drawn.max_new_tokens, drawn.temperature, drawn.top_p, drawn.top_k) == (7, 0.5, 0.9, 40)
    assert (drawn.repetition_penalty, drawn.seed, drawn.stop) == (1.2, 11, ("END", "\n\n"))


def test_the_prompt_can_come_from_standard_input(run, tiny):
    shown = run("submit", "text", "-", "--wait", input="two\nlines\n")
    assert shown.exit_code == 0, shown.output
    assert tiny.jobs[0].prompt == "two\nlines\n"


def test_submit_stream_prints_text_on_one_stream_and_the_rest_on_the_other(run, tiny):
    shown = run("submit", "text", "Which?", "--stream")
    assert (shown.exit_code, shown.stdout) == (0, TEXT + "\n")
    assert shown.stderr.startswith("job ")
    assert "succeeded" in shown.stderr
    assert "Which?" not in shown.output


def test_submit_stream_for_machines_is_events_then_the_outcome(run, tiny):
    shown = run("submit", "text", "Which?", "--stream", "--json")
    *events, outcome = lines(shown.stdout)
    assert [Event.model_validate(event).seq for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events] == ["queued", "started", *["delta"] * 4, "succeeded"]
    assert "".join(event["text"] for event in events) == outcome["text"] == TEXT
    assert (outcome["id"], outcome["state"]) == (events[0]["job"], "succeeded")
    assert outcome["timings"]["finished_s"] >= outcome["timings"]["first_output_s"] >= 0
    assert shown.stderr == ""


def test_submit_wait_for_machines_is_the_outcome(run, tiny):
    (outcome,) = lines(run("submit", "text", "Which?", "--wait", "--json").stdout)
    assert (outcome["state"], outcome["text"], outcome["usage"]["completion_tokens"]) == (
        "succeeded",
        TEXT,
        4,
    )
    (again,) = lines(run("result", outcome["id"], "--json").stdout)
    assert again == outcome


def test_submit_for_machines_is_the_id(run):
    (said,) = lines(run("submit", "text", "Which?", "--json").stdout)
    assert said["modality"] == "text"
    (status,) = lines(run("status", said["id"], "--json").stdout)
    assert (status["state"], status["queue"], status["position"]) == ("waiting", "ccs.text", 0)


def test_progress_of_a_sound_is_a_note(run, tiny, tmp_path):
    clip = tmp_path / "clip.wav"
    clip.write_bytes(b"RIFF")
    shown = run("submit", "audio", "--audio", str(clip), "--stream")
    assert shown.stdout == TEXT + "\n"
    assert "[window 4 of 4]" in shown.stderr


@pytest.mark.usefixtures("no_key_leaks")
@pytest.mark.parametrize("end", ["failed", "expired", "quarantined"])
def test_a_job_that_did_not_succeed_is_3(run, tiny, end):
    shown = run("submit", "text", "Which?", "--metadata", f"end={end}", "--wait")
    assert (shown.exit_code, shown.stdout) == (3, TEXT + "\n")
    assert end in shown.stderr
    assert ("error: OUT_OF_MEMORY: 12 GB are not 16 GB" in shown.stderr) == (end == "failed")
    job = tiny.jobs[0].id
    assert run("result", job, "--json").exit_code == 3
    assert run("stream", job).exit_code == 3


def test_stream_after_skips_what_was_seen(run, tiny):
    job = run("submit", "text", "Which?", "--wait", "--json")
    job_id = json.loads(job.stdout)["id"]
    events = lines(run("stream", job_id, "--after", "4", "--json").stdout)[:-1]
    assert [event["seq"] for event in events] == [5, 6, 7]


@pytest.mark.usefixtures("no_key_leaks")
def test_cancel_of_a_waiting_and_of_a_running_job(run, redis_url):
    job = run("submit", "text", "Which?").stdout.strip()
    assert json.loads(run("cancel", job, "--json").stdout) == {"id": job, "state": "cancelled"}
    shown = run("result", job)
    assert (shown.exit_code, shown.stdout) == (3, "")
    tiny = TinyWorker(redis_url)
    try:
        job = run("submit", "text", "Which?", "--metadata", "hold=1").stdout.strip()
        wait_until(lambda: json.loads(run("status", job, "--json").stdout)["state"] == "running")
        assert run("cancel", job).stdout == f"{job} cancelling\n"
        tiny.go_on.set()
        assert json.loads(run("result", job, "--json").stdout)["state"] == "cancelled"
    finally:
        tiny.stop()


def test_the_same_idempotency_key_is_the_same_job(run):
    first = run("submit", "text", "Which?", "--idempotency-key", "k")
    assert run("submit", "text", "Which?", "--idempotency-key", "k").stdout == first.stdout
    other = run("submit", "text", "Another?", "--idempotency-key", "k", "--json")
    assert other.exit_code == 1
    assert json.loads(other.stdout)["error"]["code"] == "CONFLICT"


def test_queues_shows_what_waits_and_runs(run, redis_url):
    for _ in range(3):
        run("submit", "text", "Which?")
    table = run("queues").stdout.splitlines()
    assert table[0].split() == ["queue", "waiting", "late", "running"]
    assert ["ccs.text", "3", "0", "0"] in [line.split() for line in table]
    report = json.loads(run("queues", "--json").stdout)
    assert report["delayed"] == 0
    assert report["queues"][0] == {
        "name": "ccs.text",
        "waiting": 3,
        "running": 0,
        "tickets": 3,
        "relegated": 0,
    }


def test_workers_shows_who_lives_and_serves_what(run, redis_url):
    assert "no worker is running" in run("workers").stdout
    assert json.loads(run("workers", "--json").stdout) == {"workers": []}
    tiny = TinyWorker(redis_url)
    try:
        shown = run("workers").stdout.splitlines()[1]
        assert shown.split() == ["tiny@here", "ready", "text", "1/4", "tiny", "(ready,", "cpu)", "-", "-"]
        (worker,) = json.loads(run("workers", "--json").stdout)["workers"]
        assert (worker["name"], worker["report"]) == ("tiny@here", REPORT)
    finally:
        tiny.stop()


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("submit", "smell", "x"), 2, "INVALID_INPUT"),
        (("submit", "text", ""), 2, "INVALID_INPUT"),
        (("submit", "vision", "no picture"), 2, "INVALID_INPUT"),
        (("submit", "text", "x" * 1_100_000), 2, "PAYLOAD_TOO_LARGE"),
        (("status", "no such id"), 2, "INVALID_INPUT"),
        (("submit", "text", "x", "--model", "unknown"), 1, "NO_SUITABLE_WORKER"),
        (("status", "unknown"), 1, "NOT_FOUND"),
        (("result", "unknown"), 1, "NOT_FOUND"),
        (("stream", "unknown"), 1, "NOT_FOUND"),
        (("cancel", "unknown"), 1, "NOT_FOUND"),
    ],
)
def test_what_can_not_be_done_is_said_with_its_code(run, tiny, arguments, status, code):
    shown = run(*arguments)
    assert (shown.exit_code, shown.stdout) == (status, "")
    assert shown.stderr.startswith(f"error: {code}: ")
    shown = run(*arguments, "--json")
    assert shown.exit_code == status
    assert json.loads(shown.stdout)["error"]["code"] == code


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--max-new-tokens", "0", "'--max-new-tokens': should be a whole number from 1 to 32768, not 0"),
        ("--max-new-tokens", "many", "should be a whole number from 1 to 32768, not 'many'"),
        ("--temperature", "11", "'--temperature': should be a number from 0 to 10, not '11'"),
        ("--temperature", "nan", "should be a number from 0 to 10, not 'nan'"),
        ("--top-p", "0", "'--top-p': should be a number above 0 and at most 1, not '0'"),
        ("--top-k", "0.5", "'--top-k': should be a whole number from 1 to 1000000, not '0.5'"),
        ("--seed", "-1", "'--seed': should be a whole number from 0 to 9223372036854775807, not -1"),
        ("--deadline", "8d", "'--deadline': should be a duration above zero and at most 7d"),
        ("--max-runtime", "0", "'--max-runtime': should be a duration above zero and at most 7d"),
        ("--tenant", "a b", "--tenant: should be 1 to 128 letters, digits or any of . _ : @ / -"),
        ("--model", "?", "--model: should be 1 to 128 letters"),
        ("--stop", "x" * 257, "--stop: should be a string of 1 to 256 characters, not a longer one"),
        ("--idempotency-key", "k" * 129, "--idempotency-key: should be a string of 1 to 128"),
        ("--qos", "urgent", "'--qos'"),
        ("--url", "redis://127.0.0.1/jobs", "the database in the server's URL must be a number"),
    ],
)
def test_a_bad_value_is_2_and_told_by_option_and_range(run, option, value, told):
    shown = run("submit", "text", "x", option, value)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert told in shown.stderr
    assert "Input should" not in shown.stderr
    shown = run("submit", "text", "x", option, value, "--json")
    assert shown.exit_code == 2
    assert json.loads(shown.stdout)["error"]["code"] == "INVALID_INPUT"


def test_a_wait_that_is_over_is_an_error_and_the_job_goes_on(run):
    job = run("submit", "text", "Which?").stdout.strip()
    for command in ("result", "stream"):
        shown = run(command, job, "--timeout", "100ms")
        assert shown.exit_code == 1
        assert "error: TIMEOUT" in shown.stderr
    assert "waiting" in run("status", job).stdout


def test_a_server_that_is_down_is_said_within_the_deadline(private_server, run):
    url = private_server.url
    private_server.kill()
    for command in (("queues",), ("submit", "text", "x"), ("result", "j", "--timeout", "1s")):
        shown = run(*command, "--url", url)
        assert shown.exit_code == 1
        assert "QUEUE_UNAVAILABLE" in shown.stderr
        assert "'ccs up'" in shown.stderr


def test_no_server_named_is_said(run, monkeypatch):
    monkeypatch.delenv("CCS_REDIS_URL")
    shown = run("queues")
    assert shown.exit_code == 2
    assert "CCS_REDIS_URL" in shown.stderr


def test_watching_stops_with_an_interrupt(redis_url, errors):
    with running([*CCS, "queues", "--watch", "50ms", "--json", "--url", redis_url], stderr=errors) as watch:
        first, second = watch.stdout.readline(), watch.stdout.readline()
        assert json.loads(first) == json.loads(second)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 130
    errors.seek(0)
    assert "Traceback" not in errors.read()


def test_text_arrives_while_the_job_runs_and_an_interrupt_leaves_it_running(redis_url, tiny, errors):
    command = [*CCS, "submit", "text", "Which?", "--metadata", "hold=1", "--stream", "--url", redis_url]
    with running(command, stderr=errors) as process:
        assert process.stdout.readline() == "The capital of France\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    errors.seek(0)
    assert "Traceback" not in errors.read()
    tiny.go_on.set()
    with Client(redis_url) as client:
        assert client.job(tiny.jobs[0].id).result(timeout=10).text == TEXT


def test_a_reader_that_goes_away_is_no_traceback(redis_url, tiny):
    command = " ".join(
        [*CCS, "submit", "text", "Which?", "--stream", "--json", "--url", redis_url, "| head -n 1"]
    )
    shown = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert json.loads(shown.stdout)["kind"] == "queued"
    assert "Traceback" not in shown.stderr
    assert "BrokenPipe" not in shown.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal to write to")
def test_a_terminal_gets_no_control_characters_of_a_text(redis_url, monkeypatch):
    monkeypatch.setattr(tiny_worker, "TEXT", "\x1b[2J\x07safe")
    tiny = TinyWorker(redis_url)
    ours, theirs = os.openpty()
    try:
        command = [*CCS, "submit", "text", "Which?", "--wait", "--url", redis_url]
        subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=False, timeout=30)
        shown = os.read(ours, 4096).decode()
    finally:
        tiny.stop()
        os.close(ours)
        os.close(theirs)
    assert shown == "\ufffd[2J\ufffdsafe\r\n"


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_output_that_goes_nowhere_is_no_traceback(redis_url, redirect):
    command = f"{sys.executable} -m ccs_broker.cli queues --url {redis_url} {redirect}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert "Traceback" not in run.stderr
    assert run.returncode in {0, 1}
