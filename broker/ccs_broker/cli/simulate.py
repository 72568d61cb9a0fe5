"""The command that tries policies on a trace: `ccs simulate`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ccs_broker.cli.options import Real, Whole, json_option, with_options
from ccs_broker.cli.output import echo_json, make_table, notes, out
from ccs_broker.contract.wording import Bounds
from ccs_broker.contract.words import Modality
from ccs_broker.simulate.compare import POLICY_NAMES, Comparison, Run, compare
from ccs_broker.simulate.model import REFERENCE, DeviceModel
from ccs_broker.simulate.plots import draw, require_matplotlib
from ccs_broker.simulate.report import COLUMNS, as_value, table_rows
from ccs_broker.simulate.trace import read_trace, resample, seed_of
from ccs_broker.simulate.worker import THIRDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

__all__ = ["simulate_command"]

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Policies(click.ParamType):  # type: ignore[type-arg]  # generic since Click 8.4 only
    name = "policies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names, each once; "all" is every one."""
        if isinstance(value, tuple):
            return value
        names = POLICY_NAMES if value == "all" else tuple(dict.fromkeys(str(value).split(",")))
        if unknown := [name for name in names if name not in POLICY_NAMES]:
            self.fail(f"should be of {', '.join(POLICY_NAMES)}, or all, not {unknown[0]!r}", param, ctx)
        return names


#: Bounds of what arrival times are stretched by: a trace of seconds becomes one of days, but not of geological ages.
_LEAST_LOAD: Final = 1e-4
_MOST_LOAD: Final = 1e4
_SCALES: Final = Bounds(least=1e-6, most=1e6)


class _Loads(click.ParamType):  # type: ignore[type-arg]  # as above
    name = "loads"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return shares of capacity, each above 0."""
        if isinstance(value, tuple):
            return value
        try:
            loads = tuple(dict.fromkeys(float(part) for part in str(value).split(",")))
        except ValueError:
            loads = (0.0,)
        if not all(_LEAST_LOAD <= load <= _MOST_LOAD for load in loads):
            self.fail(
                f"should be a number from {_LEAST_LOAD:g} to {_MOST_LOAD:g}, or several as in 0.9,1.5, "
                f"not {str(value)!r}",
                param,
                ctx,
            )
        return loads


class _Shares(click.ParamType):  # type: ignore[type-arg]  # as above
    name = "shares"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mapping[Modality, float]:
        """Return each modality's share of slots and memory."""
        if isinstance(value, dict):
            return value
        try:
            pairs = (part.split("=") for part in str(value).split(","))
            shares = {Modality(word): float(share) for word, share in pairs}
        except ValueError:
            shares = {}
        if (
            not shares
            or not all(share > 0 for share in shares.values())
            or not sum(shares.values()) <= 1 + 1e-9
        ):
            self.fail(
                f"should be like text=0.5,vision=0.3,audio=0.2, in all at most 1, not {str(value)!r}",
                param,
                ctx,
            )
        return shares


@click.command("simulate")
@with_options(
    click.option("--trace", type=_FILE, required=True, help="Requests as CSV; see docs/scheduling.md."),
    click.option(
        "--load", "loads", type=_Loads(), metavar="L[,L...]",
        help="Arrival rate as a share of what FIFO can do; 0.9 unless --scale is given.",
    ),
    click.option(
        "--scale", type=Real(_SCALES),
        help="Or: times between arrivals, times so much."
    ),
    click.option(
        "--policy", "policies", type=_Policies(), default="all", show_default=True, metavar="NAME[,NAME...]",
        help=f"{', '.join(POLICY_NAMES)}, or all.",
    ),
    click.option(
        "--workers",
        type=Whole(Bounds(least=1, most=1000)),
        default=1,
        show_default=True,
        help="So many devices.",
    ),
    click.option("--rows", type=Whole(Bounds(least=1, most=None)), help="Only so many requests of the trace."),
    click.option(
        "--seed", type=Whole(Bounds(least=0, most=None)),
        help="Draw a trace with the same distributions; the seed in the file's name is the file itself.",
    ),
    click.option("--device", type=_FILE, help="Coefficients of another device as JSON; see docs/scheduling.md."),
    click.option(
        "--estimates", type=click.Choice(["known", "learnt"]), default="known", show_default=True,
        help="Service times are known, or learnt from the jobs that end.",
    ),
    click.option(
        "--overload", type=click.Choice(["relegate", "refuse", "accept"]), default="relegate", show_default=True,
        help="The wish of every job that can't meet its target.",
    ),
    click.option(
        "--preempt/--no-preempt",
        "preempts",
        default=False,
        show_default=True,
        help="Urgent jobs take the places of others that run.",
    ),
    click.option(
        "--share", "shares", type=_Shares(), metavar="MODALITY=SHARE,...",
        help="How static divides slots and memory; thirds unless given.",
    ),
    click.option(
        "--plots", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
        help="Write plots as PNG files; needs the extra 'plots'.",
    ),
    json_option,
)  # fmt: skip
def simulate_command(as_json: bool, folder: Path | None, **options: Any) -> None:
    """Try scheduling policies on a trace, on a virtual clock and modelled devices.

    The scripts, the priority calculator and the estimator are those of a real fleet; only the clock, the workers and
    their devices are simulated. Nothing is read from or written to your server: a private one runs meanwhile.

    \b
    ccs simulate --trace requests.csv
    ccs simulate --trace requests.csv --load 0.9,1.5 --policy fifo,balanced --plots plots
    ccs simulate --trace requests.csv --seed 11 --workers 4 --estimates learnt --json
    """
    if folder is not None:
        # Before minutes of work, not after.
        require_matplotlib()
    comparison, seed = _comparison(**options)
    with _progress(as_json=as_json) as progress:
        runs = list(compare(comparison, _Watcher(progress) if progress else None))
    if as_json:
        echo_json(as_value(comparison, runs, trace=options["trace"].name, seed=seed))
    else:
        _show(comparison, runs)
    if folder is not None:
        for path in draw(runs, folder):
            notes().print(f"wrote {path}")


def _comparison(
    trace: Path, rows: int | None, seed: int | None, device: Path | None, **rest: Any
) -> tuple[Comparison, int | None]:
    """What the options ask for, and the seed of the trace."""
    drawn = seed is not None and seed != seed_of(trace)
    found = read_trace(trace, None if drawn else rows)
    if drawn and seed is not None:
        found = resample(found, seed, rows or len(found))
    scale, loads = rest["scale"], rest["loads"]
    if scale is not None and loads:
        raise click.UsageError("--load and --scale both set the arrival rate; give one of them")
    comparison = Comparison(
        rows=found,
        policies=rest["policies"],
        loads=loads or (() if scale is not None else (0.9,)),
        scale=scale or 1.0,
        workers=rest["workers"],
        model=DeviceModel.from_file(device) if device else REFERENCE,
        learnt=rest["estimates"] == "learnt",
        overload=rest["overload"],
        preempts=rest["preempts"],
        shares=rest["shares"] or THIRDS,
    )
    return comparison, seed if drawn else seed_of(trace)


def _show(comparison: Comparison, runs: Sequence[Run]) -> None:
    console = out()
    for load in dict.fromkeys(run.load for run in runs):
        own = [run for run in runs if run.load == load]
        attainable = own[0].summary.attainable
        console.print(
            f"load {load:.3g} of capacity, {len(comparison.rows)} jobs ({attainable} attainable), "
            f"{comparison.workers} worker(s), estimates {'learnt' if comparison.learnt else 'known'}; "
            "seconds to first output, targets met in %"
        )
        console.print(make_table(COLUMNS, table_rows(own), console=console))
        for run in own:
            if run.estimate_error is not None:
                console.print(f"{run.policy}: median error of the estimates {100 * run.estimate_error:.1f} %")


def _progress(*, as_json: bool) -> AbstractContextManager[Progress | None]:
    console = notes()
    if as_json or not console.is_terminal:
        return nullcontext()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


class _Watcher:
    """Shows each run as a bar of its own."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[tuple[str, float], Any] = {}

    def __call__(self, policy: str, load: float, ended: int, of: int) -> None:
        key = (policy, load)
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(f"{policy}, load {load:.3g}", total=of)
        self._progress.update(self._bars[key], completed=ended)
