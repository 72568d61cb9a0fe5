"""Commands on a job that exists: stream, result, status, cancel, reprioritize."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click
from rich.text import Text

from ccs_broker.cli.options import DURATION, Whole, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, out, plain_value, print_facts, printable, state_text
from ccs_broker.cli.show import show_result, show_stream
from ccs_broker.client import Client
from ccs_broker.contract import QosClass
from ccs_broker.contract.wording import Bounds

if TYPE_CHECKING:
    from ccs_broker.client import JobHandle

__all__ = ["cancel_command", "reprioritize_command", "result_command", "status_command", "stream_command"]

_job = click.argument("job")
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    help="Give up after so long without news (5s, 2m); the job goes on. Without it, only a server that is away "
    "for 5 minutes ends the waiting.",
)


@click.command("stream")
@with_options(_job, _timeout, url_option, json_option)
@click.option(
    "--after",
    type=Whole(Bounds(least=0, most=None)),
    default=0,
    metavar="SEQ",
    help="Skip events up to this number.",
)
def stream_command(job: str, timeout_s: float | None, url: str | None, as_json: bool, after: int) -> int:
    """Follow a job: what it has written so far, then what comes.

    The text goes to standard output, everything about it to standard error. With --json each event is a line,
    and the last line is the outcome. Joining late or twice shows the same events. A server that goes away is
    waited for, with a note on standard error; whoever gives up is told how to go on.

    \b
    ccs stream 0190c2c8a7d5 --timeout 1m
    ccs stream 0190c2c8a7d5 --after 17 --json
    """
    with closing(Client(url)) as client:
        return show_stream(client, _found(client, job), after=after, timeout_s=timeout_s, as_json=as_json)


@click.command("result")
@with_options(_job, _timeout, url_option, json_option)
def result_command(job: str, timeout_s: float | None, url: str | None, as_json: bool) -> int:
    """Wait for a job to end and print its text.

    Ends with 0 if the job succeeded, 3 if it failed, expired, was cancelled or quarantined.

    \b
    ccs result 0190c2c8a7d5 --timeout 30s
    """
    with closing(Client(url)) as client:
        return show_result(client, _found(client, job), timeout_s=timeout_s, as_json=as_json)


def _found(client: Client, job_id: str) -> JobHandle:
    """The job, which is there: a server that is away from the start, or an unknown id, is no matter for patience."""
    job = client.job(job_id)
    job.status()
    return job


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

    A waiting job ends at once, a running one at its next step; prints the state it is in then. An id that isn't
    known is an error; should its job still arrive within a day, it is cancelled all the same.

    \b
    ccs cancel 0190c2c8a7d5
    """
    with closing(Client(url)) as client:
        state = client.job(job).cancel().value
    if as_json:
        echo_json({"id": job, "state": state})
    else:
        out().print(Text.assemble(printable(job), " ", state_text(state)))


@click.command("reprioritize")
@with_options(_job, url_option, json_option)
@click.option(
    "--qos", type=click.Choice([qos.value for qos in QosClass]), help="How urgent it is from now on."
)
@click.option(
    "--deadline", "deadline_s", type=DURATION, help="From now, by which it must be done: 500ms, 5s."
)
def reprioritize_command(
    job: str, url: str | None, as_json: bool, qos: str | None, deadline_s: float | None
) -> None:
    """Give a waiting job another class or deadline.

    It keeps its turn among its tenant's jobs; what isn't said stays as it was. A job that runs or has ended is an
    error. Prints where the job stands then.

    \b
    ccs reprioritize 0190c2c8a7d5 --qos interactive
    ccs reprioritize 0190c2c8a7d5 --deadline 30s
    """
    if qos is None and deadline_s is None:
        raise click.UsageError("say --qos, --deadline or both")
    with closing(Client(url)) as client:
        status = plain_value(client.job(job).reprioritize(qos, deadline_s))
    if as_json:
        echo_json(status)
    else:
        print_facts(status)
