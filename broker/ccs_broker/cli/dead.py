"""Commands on what went wrong for good: list, show, replay and purge quarantined jobs and dead letters."""

from __future__ import annotations

from base64 import b64encode
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ccs_broker.cli.options import Whole, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, make_table, notes, out, plain_value, print_facts, printable, utc
from ccs_broker.client import Client
from ccs_broker.client.dead import DEFAULT_LIMIT, LETTER
from ccs_broker.contract.wording import Bounds
from ccs_broker.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.client import DeadJob, DeadLetter, DeadReport

__all__ = ["dead_command"]


@click.group("dead")
def dead_command() -> None:
    """List, replay and purge quarantined jobs and messages nobody understood.

    A quarantined job has killed what ran it, or could not be run at all. Its payload is kept for as long as its
    outcome, so that it can be run again once the fault is found. A dead letter is a message on one of our queues
    that isn't a job: it can be looked at, and purged.

    \b
    ccs dead list
    ccs dead show 0190c2c8a7d5
    ccs dead replay 0190c2c8a7d5
    ccs dead purge letter:0
    """


@dead_command.command("list")
@with_options(url_option, json_option)
@click.option(
    "--limit",
    type=Whole(Bounds(least=1, most=None)),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Show so many jobs and letters.",
)
def list_command(url: str | None, as_json: bool, limit: int) -> None:
    """List both, the newest first; never a prompt.

    \b
    ccs dead list
    ccs dead list --limit 1000 --json
    """
    with closing(Client(url)) as client:
        report = client.dead(limit)
    if as_json:
        echo_json(report)
    else:
        _print_report(report)


@dead_command.command("show")
@with_options(click.argument("name", metavar="JOB|letter:N"), url_option, json_option)
@click.option(
    "--raw", is_flag=True, help="Also print the payload, prompt included, or the message's first bytes."
)
def show_command(name: str, url: str | None, as_json: bool, raw: bool) -> None:
    """Show all that is known of one of them.

    Prompts and bytes are printed with --raw only; with --json a letter's bytes are in base64.

    \b
    ccs dead show 0190c2c8a7d5
    ccs dead show letter:3 --raw
    """
    index = _letter_index(name)
    with closing(Client(url)) as client:
        facts = _job_facts(client, name, raw) if index is None else _letter_facts(client, index, raw)
    if as_json:
        echo_json(
            {
                key: b64encode(value).decode() if isinstance(value, bytes) else value
                for key, value in facts.items()
            }
        )
        return
    content = facts.pop("payload" if index is None else "raw", None)
    print_facts(facts)
    if isinstance(content, bytes):
        click.echo(printable(content.decode(errors="replace")))
    elif content is not None:
        echo_json(content)


@dead_command.command("replay")
@with_options(click.argument("jobs", nargs=-1, required=True, metavar="JOB..."), url_option, json_option)
def replay_command(jobs: Sequence[str], url: str | None, as_json: bool) -> None:
    """Submit jobs once more and print the new ids.

    A deadline begins anew. Repeated, it prints the same id: a job is replayed once. The old job stays as it ended.

    \b
    ccs dead replay 0190c2c8a7d5
    ccs stream $(ccs dead replay 0190c2c8a7d5)
    """
    with closing(Client(url)) as client:
        for job_id in jobs:
            new_id = client.replay(job_id).id
            if as_json:
                echo_json({"id": job_id, "replayed_as": new_id})
            else:
                click.echo(new_id)


@dead_command.command("purge")
@with_options(click.argument("names", nargs=-1, metavar="[JOB|letter:N]..."), url_option, json_option)
@click.option("--all", "everything", is_flag=True, help="Purge every quarantined job and every dead letter.")
@click.option("--yes", is_flag=True, help="Don't ask before --all.")
def purge_command(names: Sequence[str], url: str | None, as_json: bool, everything: bool, yes: bool) -> None:
    """Drop kept payloads, media and letters for good.

    How a job ended can still be read; it can no longer be replayed. Purging a letter renumbers the newer ones.

    \b
    ccs dead purge 0190c2c8a7d5 letter:0
    ccs dead purge --all --yes
    """
    if everything == bool(names):
        raise click.UsageError("name jobs or letters to purge, or give --all")
    if everything and not yes:
        question = "Drop every quarantined job's payload and every dead letter?"
        click.confirm(question, abort=True, err=True)
    letters = [index for name in names if (index := _letter_index(name)) is not None]
    jobs = [name for name in names if _letter_index(name) is None]
    with closing(Client(url)) as client:
        purged = client.purge("all", "all") if everything else client.purge(jobs, letters)
    if as_json:
        echo_json(purged)
    else:
        out().print(f"purged {purged.jobs} jobs and {purged.letters} letters")
    absent = len(set(names)) - purged.jobs - purged.letters
    if absent > 0:
        raise NotFoundError(f"{absent} of {len(set(names))} are not (or no longer) among the dead")


def _letter_index(name: str) -> int | None:
    """The index in ``letter:N``; None for the id of a job."""
    if not name.startswith(LETTER):
        return None
    number = name.removeprefix(LETTER)
    if not (number.isascii() and number.isdigit()):
        raise click.UsageError(f"{name!r} names no dead letter; write letter:0, letter:1, ...")
    return int(number)


def _job_facts(client: Client, job_id: str, raw: bool) -> dict[str, Any]:
    facts: dict[str, Any] = plain_value(client.dead_job(job_id, raw=raw))
    return _without_content({**facts.pop("job"), **facts}, "payload", raw)


def _letter_facts(client: Client, index: int, raw: bool) -> dict[str, Any]:
    facts: dict[str, Any] = plain_value(client.dead_letter(index, raw=raw))
    return _without_content({**facts.pop("letter"), **facts}, "raw", raw)


def _without_content(facts: dict[str, Any], name: str, raw: bool) -> dict[str, Any]:
    if not raw:
        del facts[name]
    return facts


def _print_report(report: DeadReport) -> None:
    console = out()
    if not report.jobs and not report.letters:
        notes().print(Text("nothing is quarantined, and there are no dead letters"))
        return
    if report.jobs:
        columns = ("quarantined", "job", "modality", "model", "tenant", ">attempts", "error", "replayed as")
        console.print(make_table(columns, map(_job_row, report.jobs), console=console))
    if report.letters:
        if report.jobs:
            console.print()
        rows = map(_letter_row, report.letters)
        console.print(make_table(("letter", "queue", ">bytes", "reason"), rows, console=console))
    if report.more_jobs or report.more_letters:
        notes().print(
            Text(f"and {report.more_jobs} older jobs, {report.more_letters} older letters; see --limit")
        )


def _job_row(job: DeadJob) -> tuple[str, ...]:
    error = f"{job.code}: {job.message}" if job.code else "-"
    return (
        utc(job.at_ms),
        job.id,
        job.modality,
        job.model or "-",
        job.tenant or "-",
        str(job.attempts),
        error,
        job.replayed_as or "-",
    )


def _letter_row(letter: DeadLetter) -> tuple[str, ...]:
    return f"{LETTER}{letter.index}", letter.queue, str(letter.size_bytes), letter.reason
