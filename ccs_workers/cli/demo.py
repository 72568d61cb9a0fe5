"""The commands that run the whole system on this machine: once to be watched, or until it is stopped."""

from __future__ import annotations

import shlex
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from ccs_broker.cli.failures import EXIT_NOT_SUCCEEDED
from ccs_broker.cli.options import Whole, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, notes, out, printable, spinner
from ccs_broker.contract.wording import Bounds
from ccs_broker.errors import ConfigurationError
from ccs_broker.settings import require_url
from ccs_workers.cli.model_files import home_option, models_option, prepare_shown, prepared_folder
from ccs_workers.cli.showcase import SHOWN, follow, submit_all
from ccs_workers.cli.system import (
    LocalSystem,
    SystemOptions,
    ending_on_signals,
    loading,
    local_system,
    show_log,
)
from ccs_workers.cli.views import loading_view, results_table, stream_view
from ccs_workers.cli.worker import capacity_options, require_models, require_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from ccs_broker.client import Client
    from ccs_workers.cli.showcase import Strand

__all__ = ["demo_command", "up_command"]

_LOOK_S: Final = 0.5

_system_options = with_options(
    capacity_options,
    models_option,
    home_option,
    click.option("--flower/--no-flower", default=True, show_default=True, help="Start Flower as well."),
    url_option,
    json_option,
)


@click.command("demo", short_help="See the whole system run here, live.")
@click.option(
    "--jobs",
    type=Whole(Bounds(least=1, most=64)),
    default=1,
    show_default=True,
    help="Jobs of each modality.",
)
@_system_options
def demo_command(jobs: int, as_json: bool, **options: Any) -> int:
    """Start everything on this machine, run a text, a vision and an audio job at once, and stop everything.

    Without --url a server of its own is started; without --models the demo's models are prepared, which takes
    a few minutes the first time. Ends with 0 only if every job succeeded. With --json the last line on
    standard output is {"jobs": [...]}.

    \b
    ccs demo
    ccs demo --jobs 4 --no-flower
    """
    console = notes() if as_json else out()
    with _ready_system(options, console) as (system, client):
        modalities = [modality for modality in SHOWN if modality in system.modalities]
        if not modalities:
            raise ConfigurationError(
                f"the model file has no model of {', '.join(SHOWN)}: there is nothing to show"
            )
        strands = submit_all(client, modalities, jobs)
        with stream_view(strands, console=console) as show:
            for strand, event in follow(strands, system.require_worker):
                show(strand, event)
        console.print(results_table(strands, console=console))
        if not all(strand.succeeded for strand in strands):
            _explain(strands, system, console)
    if as_json:
        echo_json({"jobs": [_summary(strand) for strand in strands]})
    return 0 if all(strand.succeeded for strand in strands) else EXIT_NOT_SUCCEEDED


@click.command("up", short_help="The same, staying up, with Flower.")
@_system_options
def up_command(as_json: bool, **options: Any) -> int:
    """Start everything on this machine and stay up until Ctrl-C or SIGTERM.

    The logs of the worker and of Flower lie where it says, until it is stopped; after a failure they stay. With
    --json one line tells the addresses and the logs when everything is ready.

    \b
    ccs up
    ccs up --slots 8 --models models.toml
    """
    console = notes() if as_json else out()
    with _ready_system(options, console) as (system, _):
        if as_json:
            logs = {name: str(path) for name, path in _logs(system).items()}
            said = {"url": system.url, "worker": system.worker_name, "flower": _login(system), "logs": logs}
            echo_json(said)
        else:
            _print_examples(system, console)
        never = threading.Event()
        while not never.wait(_LOOK_S):
            system.require_worker()
            system.require_server()
    return 0


@contextmanager
def _ready_system(options: dict[str, Any], console: Console) -> Iterator[tuple[LocalSystem, Client]]:
    """Prepare models, start the parts and wait until the worker serves; stop everything at the end."""
    from ccs_broker.client import Client

    with ending_on_signals():
        model_file = options["model_file"]
        if model_file is None:
            model_file = prepare_shown(prepared_folder(options["home"]), None, console=console).model_file
        wanted = SystemOptions(
            url=options["url"],
            model_file=model_file,
            modalities=require_models(model_file, ()),
            slots=options["slots"],
            device=options["device"],
            allocation=options["allocation"],
            floors=options["floors"],
            flower=options["flower"],
        )
        if wanted.url is not None:
            require_server(require_url(wanted.url))
        with local_system(wanted, console=console) as system, closing(Client(system.url)) as client:
            with loading_view(console) as show:
                for report in loading(system, client):
                    show(report)
            _announce(system, console)
            yield system, client


def _announce(system: LocalSystem, console: Console) -> None:
    """Say where everything is; a Flower that didn't come up is reported and left at that."""
    console.print(Text(f"server  {system.shown_url}"))
    console.print(Text(f"worker  {system.worker_name} ({', '.join(system.modalities)})"))
    for name, path in _logs(system).items():
        console.print(Text(f"log     {path} ({name})"), soft_wrap=True)
    if system.flower is None:
        return
    with spinner("starting Flower"):
        ready = system.wait_for_flower()
    if ready:
        console.print(
            Text(f"Flower  {system.flower.url}  user {system.flower.user}, password {system.flower.password}")
        )
    else:
        console.print(Text(f"Flower did not start: {system.flower.child.tail(1)}", style="yellow"))


def _logs(system: LocalSystem) -> dict[str, Path]:
    """Where each part's log lies, by the part's name."""
    children = [system.worker, *([system.flower.child] if system.flower is not None else [])]
    return {child.name: child.log for child in children}


def _explain(strands: list[Strand], system: LocalSystem, console: Console) -> None:
    """Say why jobs didn't succeed, as far as their outcomes and the worker's log tell."""
    for strand in strands:
        if strand.outcome is not None and strand.outcome.error is not None:
            error = strand.outcome.error
            console.print(Text(f"{strand.modality}: {error.code}: {printable(error.message)}", style="red"))
    show_log(system.worker, console)


def _login(system: LocalSystem) -> dict[str, str] | None:
    flower = system.flower
    if flower is None or not flower.ready():
        return None
    return {"url": flower.url, "user": flower.user, "password": flower.password}


def _print_examples(system: LocalSystem, console: Console) -> None:
    from ccs_workers.samples import sample_path

    page, clip = (shlex.quote(str(sample_path(name))) for name in ("page.png", "clip.wav"))
    console.print()
    console.print(Text("In another terminal:", style="bold"))
    for line in (
        f"export CCS_REDIS_URL={system.shown_url}",
        'ccs submit text "What is the capital of France?" --stream',
        f"ccs submit vision --image {page} --wait",
        f"ccs submit audio --audio {clip} --stream",
        "ccs queues",
    ):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()
    console.print(Text("Ctrl-C stops everything.", style="dim"))


def _summary(strand: Strand) -> dict[str, Any]:
    outcome = strand.outcome
    timings = outcome.timings if outcome is not None else None
    return {
        "id": strand.job.id,
        "modality": strand.modality,
        "state": strand.state,
        "text": outcome.text if outcome is not None else strand.text,
        "events": strand.events,
        "first_output_s": timings and timings.first_output_s,
        "duration_s": timings and timings.finished_s,
        "tokens": outcome.usage.completion_tokens if outcome is not None else 0,
        "worker": outcome and outcome.worker,
        "attempts": outcome.attempts if outcome is not None else 0,
        "error": outcome.error.code if outcome is not None and outcome.error is not None else None,
    }
