"""Commands on a job that exists: stream, result, status, cancel."""

from __future__ import annotations

from contextlib import closing

import click
from rich.text import Text

from ccs_broker.cli.options import DURATION, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, out, plain_value, print_facts, printable, spinner, state_text
from ccs_broker.cli.show import show_outcome, show_stream
from ccs_broker.client import Client

__all__ = ["cancel_command", "result_command", "status_command", "stream_command"]

_job = click.argument("job")
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    help="Give up after so long without news (5s, 2m); the job goes on.",
)


@click.command("stream")
@with_options(_job, _timeout, url_option, json_option)
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Skip events up to this number."
)
def stream_command(job: str, timeout_s: float | None, url: str | None, as_json: bool, after: int) -> int:
    """Follow a job: what it has written so far, then what comes.

    The text goes to standard output, everything about it to standard error. With --json each event is a line,
    and the last line is the outcome. Joining late or twice shows the same events.

    \b
    ccs stream 0190c2c8a7d5 --timeout 1m
    ccs stream 0190c2c8a7d5 --after 17 --json
    """
    with closing(Client(url)) as client:
        return show_stream(client.job(job), after=after, timeout_s=timeout_s, as_json=as_json)


@click.command("result")
@with_options(_job, _timeout, url_option, json_option)
def result_command(job: str, timeout_s: float | None, url: str | None, as_json: bool) -> int:
    """Wait for a job to end and print its text.

    Ends with 0 if the job succeeded, 3 if it failed, expired, was cancelled or quarantined.

    \b
    ccs result 0190c2c8a7d5 --timeout 30s
    """
    with closing(Client(url)) as client:
        with spinner(f"{job}: waiting for its end"):
            outcome = client.job(job).result(timeout=timeout_s)
        return show_outcome(job, outcome, as_json=as_json)


@click.command("status")
@with_options(_job, url_option, json_option)
def status_command(job: str, url: str | None, as_json: bool) -> None:
    """Show where a job stands, without waiting.

    \b
    ccs status 0190c2c8a7d5 --json
    """
    with closing(Client(url)) as client:
        status = plain_value(client.job(job).status())
    if as_json:
        echo_json(status)
    else:
        print_facts(status)


@click.command("cancel")
@with_options(_job, url_option, json_option)
def cancel_command(job: str, url: str | None, as_json: bool) -> None:
    """Cancel a job, whether it waits or runs.

    A waiting job ends at once, a running one at its next step; prints the state it is in then.

    \b
    ccs cancel 0190c2c8a7d5
    """
    with closing(Client(url)) as client:
        state = client.job(job).cancel().value
    if as_json:
        echo_json({"id": job, "state": state})
    else:
        out().print(Text.assemble(printable(job), " ", state_text(state)))
