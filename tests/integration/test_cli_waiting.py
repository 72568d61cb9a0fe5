"""`ccs submit --stream` and its like without a worker or a server: told on standard error, not given up."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ccs_broker.cli.group import ccs
from tests import tiny_worker
from tests.helpers import frozen, running, wait_until
from tests.tiny_worker import TEXT, TinyWorker

if TYPE_CHECKING:
    from pathlib import Path

CCS = [sys.executable, "-m", "ccs_broker.cli"]
NOBODY = "note: no worker serves text: the job waits until one does"


@pytest.mark.parametrize(
    "command", [("--stream",), ("--wait",), ("--stream", "--json"), ("--wait", "--json")]
)
def test_a_job_that_nobody_serves_says_so_where_there_is_no_terminal(redis_url, tmp_path: Path, command):
    errors = tmp_path / "errors"
    arguments = [*CCS, "submit", "text", "Which?", *command, "--url", redis_url]
    with errors.open("w") as file, running(arguments, stderr=file) as process:
        wait_until(lambda: NOBODY in errors.read_text())
        tiny = TinyWorker(redis_url)
        try:
            out, _ = process.communicate(timeout=20)
        finally:
            tiny.stop()
    assert process.returncode == 0
    assert errors.read_text().count(NOBODY) == 1
    if "--json" in command:
        assert json.loads(out.splitlines()[-1])["text"] == TEXT
        assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    else:
        assert out == TEXT + "\n"


def test_a_timeout_tells_how_to_pick_the_job_up(redis_url):
    shown = CliRunner().invoke(
        ccs, ["submit", "text", "x", "--stream", "--timeout", "100ms", "--url", redis_url]
    )
    job = shown.stderr.split()[1]
    assert shown.exit_code == 1
    assert f"job {job} goes on without you: pick it up with 'ccs stream {job} --after 1'" in shown.stderr
    shown = CliRunner().invoke(ccs, ["result", job, "--timeout", "100ms", "--json", "--url", redis_url])
    assert f"'ccs result {job}'" in json.loads(shown.stdout)["error"]["message"]


def test_a_stream_goes_on_after_a_server_was_away_for_longer_than_the_clients_deadline(
    private_server, tmp_path: Path
):
    errors = tmp_path / "errors"
    tiny = TinyWorker(private_server.url)
    arguments = [
        *CCS,
        "submit",
        "text",
        "Which?",
        "--metadata",
        "hold=1",
        "--stream",
        "--url",
        private_server.url,
    ]
    try:
        with errors.open("w") as file, running(arguments, stderr=file) as process:
            assert process.stdout.readline() == "The capital of France\n"
            with frozen(private_server):
                wait_until(lambda: "trying again for up to" in errors.read_text(), 30)
            wait_until(lambda: "the server is back" in errors.read_text(), 30)
            tiny.go_on.set()
            out, _ = process.communicate(timeout=20)
    finally:
        tiny.stop()
    assert (process.returncode, out) == (0, "is Paris 🗼.\n")


@pytest.mark.parametrize(("takes_prompt", "noted"), [(False, True), (True, False), (None, False)])
def test_a_prompt_that_the_model_ignores_is_noted_at_submit(
    redis_url, tmp_path, monkeypatch, takes_prompt, noted
):
    model = {"alias": "eye", "modality": "vision", "state": "ready", "takes_prompt": takes_prompt}
    report = {"state": "ready", "modalities": ["vision"], "models": [model]}
    monkeypatch.setattr(tiny_worker, "REPORT", report)
    page = tmp_path / "page.png"
    page.write_bytes(b"png")
    tiny = TinyWorker(redis_url)
    try:
        for arguments, expected in (
            (["Who is this?"], noted),
            (["Who is this?", "--model", "tiny"], False),
            ([], False),
        ):
            command = ["submit", "vision", *arguments, "--image", str(page), "--url", redis_url, "--json"]
            shown = CliRunner().invoke(ccs, command)
            assert ("the vision model eye takes no prompt" in shown.stderr) == expected
            assert list(json.loads(shown.stdout)) == ["id", "modality"]
    finally:
        tiny.stop()


def test_help_says_what_ends_with_which_status_and_which_models_take_no_prompt():
    def shown(*arguments: str) -> str:
        run = subprocess.run([*CCS, *arguments, "--help"], capture_output=True, text=True, check=True)
        return " ".join(run.stdout.split())

    assert "2 what it was told is wrong" in shown()
    help_of_submit = shown("submit", "vision")
    assert "models take no prompt" in help_of_submit
    assert "about 5 s later" in help_of_submit
