"""Commands that look at the whole fleet: queues and workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ccs_broker.cli.options import DURATION, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, make_table, out, plain_value, printable
from ccs_broker.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType

    from ccs_broker.client import QueueReport, WorkerInfo

__all__ = ["queues_command", "workers_command"]

_STYLES: Final = {"ready": "green", "stalled": "red"}

_watch = click.option(
    "--watch",
    "every_s",
    type=DURATION,
    is_flag=False,
    flag_value="1s",
    metavar="[EVERY]",
    help="Show it again and again, once a second or as often as said, until Ctrl-C.",
)


@click.command("queues")
@with_options(_watch, url_option, json_option)
def queues_command(every_s: float | None, url: str | None, as_json: bool) -> None:
    """Show how many jobs wait and run in each queue.

    \b
    ccs queues
    ccs queues --watch 500ms
    """
    with closing(Client(url)) as client:
        _show(client.queues, plain_value, _queues_table, every_s=every_s, as_json=as_json)


@click.command("workers")
@with_options(_watch, url_option, json_option)
def workers_command(every_s: float | None, url: str | None, as_json: bool) -> None:
    """Show the live workers, how busy they are and what they serve.

    \b
    ccs workers
    ccs workers --json
    """
    with closing(Client(url)) as client:
        _show(
            client.workers,
            lambda workers: {"workers": plain_value(workers)},
            _workers_table,
            every_s=every_s,
            as_json=as_json,
        )


def _show(
    look: Callable[[], Any],
    as_value: Callable[[Any], Any],
    as_table: Callable[[Any, Console], RenderableType],
    *,
    every_s: float | None,
    as_json: bool,
) -> None:
    """Print what ``look`` sees, once or every so many seconds; a terminal is redrawn in place."""
    console = out()
    if as_json or not console.is_terminal or every_s is None:
        while True:
            seen = look()
            if as_json:
                echo_json(as_value(seen))
            else:
                console.print(as_table(seen, console))
            if every_s is None:
                return
            time.sleep(every_s)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(as_table(look(), console), refresh=True)
            time.sleep(every_s)


def _queues_table(report: QueueReport, console: Console) -> RenderableType:
    rows = [
        (queue.name, str(queue.waiting), str(queue.relegated), str(queue.running)) for queue in report.queues
    ]
    table = make_table(("queue", ">waiting", ">late", ">running"), rows, console=console)
    if not report.delayed:
        return table
    return Group(table, Text(f"{report.delayed} delayed, not due yet"))


def _workers_table(workers: tuple[WorkerInfo, ...], console: Console) -> RenderableType:
    if not workers:
        return Text("no worker is running; 'ccs worker' starts one, 'ccs up' a whole system")
    columns = ("worker", "state", "modalities", ">busy", "models", "memory: held / used", "estimates off by")
    return make_table(columns, [_row(worker.name, worker.report) for worker in workers], console=console)


def _row(name: str, report: Mapping[str, Any]) -> tuple[str | Text, ...]:
    # A report comes from a worker that may be older or newer than this command: nothing in it is certain.
    state = str(report.get("state", "?"))
    models = [
        f"{model.get('alias', '?')} ({', '.join(filter(None, (model.get('state'), model.get('device'))))})"
        for model in report.get("models", ())
    ]
    return (
        name,
        Text(printable(state), style=_STYLES.get(state, "yellow")),
        ", ".join(map(str, report.get("modalities", ()))),
        f"{report.get('busy', '?')}/{report.get('slots', '?')}",
        "\n".join(models),
        "\n".join(_memory(report.get("memory"))) or "-",
        "\n".join(_estimate(found) for found in report.get("estimates", ())) or "-",
    )


def _memory(told: object) -> list[str]:
    """What each engine holds for itself and for its jobs, and what it was measured to use; then what is free."""
    if not isinstance(told, Mapping) or not told.get("engines"):
        return []
    lines = []
    for engine in told["engines"]:
        fixed, jobs = engine.get("fixed"), engine.get("jobs_bytes")
        beside = 0 if engine.get("pool") else jobs
        held = fixed + beside if isinstance(fixed, int) and isinstance(beside, int) else None
        lines.append(
            f"{engine.get('alias', '?')} {_size(held)} / {_size(engine.get('used'))}"
            f" ({engine.get('jobs', '?')} jobs: {_size(jobs)})"
        )
    free, budget = told.get("free"), told.get("budget")
    lines.append("no bound" if budget is None else f"free {_size(free)} of {_size(budget)}")
    return lines


def _size(count: object) -> str:
    """Bytes for people."""
    if not isinstance(count, int | float):
        return "?"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _estimate(found: Mapping[str, Any]) -> str:
    """How far device times of one kind of job were predicted wrongly, in the middle."""
    kind = found.get("model") or found.get("modality", "?")
    error = found.get("error")
    return f"{kind} {error:.0%}" if isinstance(error, int | float) else f"{kind} ?"
