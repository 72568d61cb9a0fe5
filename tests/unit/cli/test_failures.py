"""Errors become one line and an exit code; for machines, one JSON object."""

from __future__ import annotations

import json

import click
import pytest

from ccs_broker import errors
from ccs_broker.cli.failures import exit_code_of


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InvalidInputError, 2), (errors.PayloadTooLargeError, 2), (errors.UnsupportedMediaError, 2),
        (errors.ConfigurationError, 2), (errors.SetupError, 1), (errors.NotFoundError, 1),
        (errors.ConflictError, 1), (errors.WaitTimeoutError, 1), (errors.QueueUnavailableError, 1),
        (errors.NoSuitableWorkerError, 1), (errors.StreamExpiredError, 1),
    ],
)  # fmt: skip
def test_an_error_of_the_tree_is_one_line_with_its_code(kind, status, capsys):
    assert exit_code_of(kind("it was\n too [bold]much[/bold]"), as_json=False) == status
    out, err = capsys.readouterr()
    assert out == ""
    first, *hint = err.splitlines()
    assert first == f"error: {kind.code}: it was too [bold]much[/bold]"
    assert all(line.startswith("  hint: ") for line in hint)
    assert len(hint) <= 1


def test_what_can_be_done_next_is_said(capsys):
    exit_code_of(errors.QueueUnavailableError("gone"), as_json=False)
    assert "'ccs up'" in capsys.readouterr().err
    exit_code_of(errors.WaitTimeoutError("late"), as_json=False, command="result")
    assert "ccs stream" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "error", "hint"),
    [
        ("submit", errors.ConflictError, "use another --idempotency-key"),
        ("reprioritize", errors.ConflictError, "only a job that waits"),
        ("status", errors.NotFoundError, "'ccs submit' prints the id"),
        ("dead", errors.NotFoundError, "'ccs dead list'"),
        ("models", errors.NotFoundError, ""),
        ("up", errors.WaitTimeoutError, ""),
        ("submit", errors.QueueFullError, "'ccs queues'"),
    ],
)
def test_a_hint_fits_the_command(command, error, hint, capsys):
    exit_code_of(error("no"), as_json=False, command=command)
    told = capsys.readouterr().err.partition("\n")[2]
    assert hint in told
    assert bool(told) == bool(hint)


@pytest.mark.parametrize(
    ("kind", "retryable"), [(errors.QueueFullError, True), (errors.NotFoundError, False)]
)
def test_machines_get_code_message_and_whether_to_retry(kind, retryable, capsys):
    assert exit_code_of(kind("no"), as_json=True) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": {"code": kind.code, "message": "no", "retryable": retryable}}
    assert err == ""


def test_wrong_usage_is_2(capsys):
    assert exit_code_of(click.UsageError("no such thing"), as_json=False) == 2
    assert "no such thing" in capsys.readouterr().err
    assert exit_code_of(click.UsageError("no such thing"), as_json=True) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "INVALID_INPUT"


def test_an_interrupt_is_130_and_silent(capsys):
    assert exit_code_of(click.Abort(), as_json=True) == 130
    assert capsys.readouterr() == ("", "")


def test_a_missing_library_says_what_to_install(capsys):
    assert exit_code_of(ModuleNotFoundError("No module named 'torch'", name="torch"), as_json=False) == 1
    assert "pip install 'ccs-workers[worker]'" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("x"), ModuleNotFoundError("x", name="ccs_workers.nothing")])
def test_what_nobody_foresaw_keeps_its_traceback(error, capsys):
    assert exit_code_of(error, as_json=False) is None
    assert capsys.readouterr() == ("", "")
