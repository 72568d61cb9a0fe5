"""What the command line says and returns when something goes wrong.

0 is success; 2 that what it was told is wrong (usage, a value, a variable, the model file), so that repeating it can't
help; 3 that the job it shows didn't succeed; 130 an interrupt; 1 everything else.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Final

import click

from ccs_broker.errors import CcsError, ConfigurationError, InvalidInputError, SetupError

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "EXIT_NOT_SUCCEEDED", "EXIT_USAGE", "exit_code_of"]

EXIT_ERROR: Final = 1
#: What the command was told is wrong: usage, a value, a variable, the model file.
EXIT_USAGE: Final = 2
#: The command did its work, but the job it shows failed, expired, was cancelled or quarantined.
EXIT_NOT_SUCCEEDED: Final = 3
EXIT_INTERRUPTED: Final = 130

#: What a reader can do next, by error code, whatever the command.
_HINTS: Final = {
    "QUEUE_UNAVAILABLE": "is the server running? --url or CCS_REDIS_URL names it; 'ccs up' starts one here",
    "QUEUE_FULL": "try again when jobs have ended; 'ccs queues' shows how many wait",
    "NO_SUITABLE_WORKER": "'ccs workers' shows who serves what; 'ccs worker --modalities ...' starts one",
    "STREAM_EXPIRED": "events are kept for an hour after the end; 'ccs result' may still have the outcome",
}
_UNKNOWN_JOB: Final = "a job can be read for a day after its end; 'ccs submit' prints the id"
_STILL_RUNS: Final = "the job goes on; ask again with 'ccs stream' or 'ccs result'"
#: Where one code asks for different things of different commands; those that aren't named get no hint.
_HINTS_OF_COMMANDS: Final = {
    "NOT_FOUND": {
        **dict.fromkeys(("stream", "result", "status", "cancel", "reprioritize"), _UNKNOWN_JOB),
        "dead": "'ccs dead list' shows what is there",
    },
    "TIMEOUT": dict.fromkeys(("submit", "stream", "result"), _STILL_RUNS),
    "CONFLICT": {
        "submit": "use another --idempotency-key, or repeat the very same request",
        "reprioritize": "only a job that waits can be moved; 'ccs status' shows where this one stands",
    },
}


def exit_code_of(error: Exception, *, as_json: bool, command: str = "") -> int | None:
    """Report an error of this command of `ccs` and return the exit code; None for one that nobody foresaw."""
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, CcsError):
        hint = _HINTS_OF_COMMANDS.get(error.code, {}).get(command) or _HINTS.get(error.code)
        _report(error.code, error.message, hint, retryable=error.retryable, as_json=as_json)
        told_wrong = isinstance(error, InvalidInputError | ConfigurationError) and not isinstance(
            error, SetupError
        )
        return EXIT_USAGE if told_wrong else EXIT_ERROR
    if isinstance(error, click.ClickException):
        if as_json:
            _report("INVALID_INPUT", error.format_message(), None, retryable=False, as_json=True)
        else:
            error.show()
        return error.exit_code
    if isinstance(error, ModuleNotFoundError) and not (error.name or "ccs_").startswith("ccs_"):
        remedy = f"{error.name} isn't installed; get it with: pip install 'ccs-workers[worker]'"
        _report("CONFIGURATION", remedy, None, retryable=False, as_json=as_json)
        return EXIT_ERROR
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EIO, errno.EBADF}:
        _report("OUTPUT", f"can't write the output: {error.strerror}", None, retryable=False, as_json=False)
        _abandon_stdout()
        return EXIT_ERROR
    return None


def _abandon_stdout() -> None:
    """Python writes out what is left at its end; that would fail once more, with a traceback."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def _report(code: str, message: str, hint: str | None, *, retryable: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"code": code, "message": message, "retryable": retryable}}))
        return
    # One line whatever the message holds, so that logs and eyes can rely on it.
    click.echo(f"error: {code}: {' '.join(message.split())}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)
