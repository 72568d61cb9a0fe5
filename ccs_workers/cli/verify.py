"""The command that measures drift and leaks: `ccs verify`."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ccs_broker.cli.failures import EXIT_ERROR
from ccs_broker.cli.options import Whole, json_option, with_options
from ccs_broker.cli.output import echo_json, make_table, notes, out, plain_value, printable
from ccs_broker.contract.wording import Bounds
from ccs_workers.cli.model_files import home_option, models_option, prepared_model_file
from ccs_workers.models.spec import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rich.console import Console

    from ccs_workers.models import ModelSpec
    from ccs_workers.verify import Finding, ModelReport, VerifyReport

__all__ = ["verify_command"]

_MOST_JOBS: Final = 1000
_MOST_NEIGHBOURS: Final = 256
#: Faults that are printed; --json has them all.
_SHOWN: Final = 20
_COLUMNS: Final = ("way", ">compared", ">cuts", ">changed", ">ties", ">leaks", ">broken", ">seconds")


@click.command("verify", short_help="Measure whether jobs disturb each other.")
@with_options(
    models_option,
    home_option,
    click.option(
        "--alias", "aliases", multiple=True, metavar="NAME", help="Only this model; may be repeated."
    ),
    click.option(
        "--neighbours",
        type=Whole(Bounds(least=0, most=_MOST_NEIGHBOURS)),
        default=16,
        show_default=True,
        help="Jobs that run beside those that are compared.",
    ),
    click.option(
        "--jobs",
        type=Whole(Bounds(least=1, most=_MOST_JOBS)),
        default=16,
        show_default=True,
        help="Jobs of each model that are compared.",
    ),
    click.option(
        "--seed",
        type=Whole(Bounds(least=0, most=(1 << 31) - 1)),
        default=0,
        show_default=True,
        help="Decides prompts, orders, cuts and kills.",
    ),
    click.option(
        "--dtype", type=click.Choice(DTYPES), help="Load the weights so, whatever the model file says."
    ),
    json_option,
)
def verify_command(
    model_file: Path | None, home: Path | None, aliases: tuple[str, ...], dtype: str | None, **options: Any
) -> int:
    """Run the same jobs alone, crowded, cut off and killed, and compare every output.

    Needs no server: it starts the engine processes that workers start. Ends with 0 if no output changed and
    none held another job's words, and with 1 otherwise; in half precision changed outputs are counted, and
    are no fault.

    \b
    ccs verify
    ccs verify --alias smollm2 --jobs 32
    ccs verify --dtype bfloat16 --json
    """
    from ccs_workers.models import load_model_file
    from ccs_workers.verify import VerifyOptions, verify

    as_json = options.pop("as_json")
    declared = load_model_file(model_file or prepared_model_file(home)).specs
    specs = [_as_dtype(spec, dtype) for spec in _chosen(declared, aliases)]
    # What is said of an engine's death here is that it was killed as it should be.
    logging.getLogger("ccs_workers").addHandler(logging.NullHandler())
    with _Bar(notes()) as bar:
        report = verify(specs, VerifyOptions(**options), bar.tell)
    if as_json:
        echo_json(_as_value(report))
    else:
        _show(report, out())
    return 0 if report.ok else EXIT_ERROR


def _chosen(declared: Sequence[ModelSpec], aliases: tuple[str, ...]) -> list[ModelSpec]:
    known = [spec.alias for spec in declared]
    if unknown := [alias for alias in aliases if alias not in known]:
        raise click.BadParameter(
            f"no model {unknown[0]!r}; the model file declares: {', '.join(known)}", param_hint="'--alias'"
        )
    return [spec for spec in declared if not aliases or spec.alias in aliases]


def _as_dtype(spec: ModelSpec, dtype: str | None) -> ModelSpec:
    if dtype is None:
        return spec
    return replace(spec, dtype=dtype, host=replace(spec.host, dtype=dtype) if spec.host else None)


class _Bar:
    """A bar a way on a terminal, a line a way elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._way = ""
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("loading", total=None)

    def __enter__(self) -> Self:
        self._held: AbstractContextManager[object] = self._progress or nullcontext()
        self._held.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def tell(self, alias: str, way: str, done: int, total: int) -> None:
        """Show how far a way is (``Tell``)."""
        title = f"{alias}: {way}" if alias else way
        if self._progress is not None:
            if title != self._way:
                self._progress.reset(self._task, description=title, total=total)
            self._progress.update(self._task, completed=done)
        elif title != self._way:
            self._console.print(Text(f"{title} ({total} jobs)"))
        self._way = title


def _show(report: VerifyReport, console: Console) -> None:
    for model in report.models:
        console.print(
            Text(f"{model.alias}, {model.dtype} on {model.device}: {model.jobs} jobs", style="bold")
        )
        cells = [
            (
                way.way.value,
                str(way.outputs),
                str(way.cuts),
                _count(way.changed, "red" if model.promised else "yellow"),
                _count(way.ties, "yellow"),
                _count(way.leaks, "red"),
                _count(way.broken, "red"),
                f"{way.seconds:.1f}",
            )
            for way in model.ways
        ]
        console.print(make_table(_COLUMNS, cells, console=console))
        console.print(_verdict(model))
        console.print()
    faults = [finding for model in report.models for finding in model.findings]
    for finding in faults[:_SHOWN]:
        console.print(_line(finding))
    if len(faults) > _SHOWN:
        console.print(Text(f"and {len(faults) - _SHOWN} more; --json has them all", style="dim"))


def _count(number: int, style: str) -> Text:
    return Text(str(number), style=style if number else "")


def _verdict(model: ModelReport) -> Text:
    style = "green" if model.ok else "red"
    rate = f"{model.changed} of {model.outputs} outputs changed"
    if not model.promised and model.changed:
        style = "yellow" if model.ok else "red"
        rate += f" ({100 * model.changed / model.outputs:.1f} %): not reproducible in {model.dtype}"
    return Text.assemble(
        (f"{rate}, {model.leaks} leaks", style),
        f"; {model.read_back} of {model.canaries} canaries read back by their own jobs",
    )


def _line(finding: Finding) -> Text:
    place = f" at {finding.place}" if finding.place else ""
    return Text(
        printable(
            f"{finding.kind.value}: {finding.alias}, {finding.way.value}, job {finding.job!r}{place}: {finding.detail}"
        )
    )


def _as_value(report: VerifyReport) -> dict[str, Any]:
    """The report for machines, with what follows from it."""
    models = [
        {
            **plain_value(model),
            "ok": model.ok,
            "reproducible": not model.changed,
            "promised": model.promised,
            "outputs": model.outputs,
            "changed": model.changed,
            "leaks": model.leaks,
        }
        for model in report.models
    ]
    return {**plain_value(report), "ok": report.ok, "models": models}
