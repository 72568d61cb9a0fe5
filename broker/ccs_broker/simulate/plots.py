"""Plots of a comparison: first output by modality and class, targets met, the unlucky, fairness. Needs matplotlib."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract.words import QosClass
from ccs_broker.errors import SetupError
from ccs_broker.simulate.metrics import shares_of_demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ccs_broker.simulate.compare import Run
    from ccs_broker.simulate.records import SimJob

__all__ = ["draw", "require_matplotlib"]

#: Colors that stay apart for most color-blind readers (Okabe and Ito); ours is the last and the strongest.
_COLORS: Final = {
    "fifo": "#999999", "static": "#E69F00", "class": "#56B4E9", "edf": "#009E73", "balanced": "#D55E00",
}  # fmt: skip
_DPI: Final = 110


def require_matplotlib() -> Any:
    """``matplotlib.figure``, imported only now.

    Raises:
        SetupError: it isn't installed; the text says how it would be.
    """
    try:
        # By name: neither its types nor its import belong to those who draw nothing.
        return import_module("matplotlib.figure")
    except ImportError:
        raise SetupError("plots need matplotlib; install it with: pip install 'ccs-workers[plots]'") from None


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write four PNG files per load into ``folder``; their paths."""
    figure = require_matplotlib().Figure
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {
        "first_output": _first_output, "targets_met": _targets_met, "unlucky": _unlucky, "fairness": _fairness,
    }  # fmt: skip
    paths = []
    for load in dict.fromkeys(run.load for run in runs):
        own = [run for run in runs if run.load == load]
        for name, drawing in kinds.items():
            canvas = drawing(figure, own)
            canvas.suptitle(f"{canvas.get_suptitle()}, load {load:.2g}", fontsize=11)
            path = folder / f"{name}_{load:.2f}.png"
            # Without the program's version in it, the same run gives the same bytes.
            canvas.savefig(path, dpi=_DPI, metadata={"Software": None})
            paths.append(path)
    return paths


def _first_output(figure: Callable[..., Any], runs: Sequence[Run]) -> Any:
    """Cumulative shares over time to first output: a row of panels by class, one by modality."""
    modalities = list(dict.fromkeys(str(job.row.modality) for job in runs[0].jobs))
    columns = max(len(QosClass), len(modalities))
    canvas = figure(figsize=(3 * columns, 5.6), layout="constrained")
    canvas.suptitle("Time to first output: share of jobs that had it")
    panels = canvas.subplots(2, columns, sharex=True, sharey=True, squeeze=False)
    for panel, qos in zip(panels[0], QosClass, strict=False):
        chosen = [[job for job in run.jobs if job.row.qos is qos] for run in runs]
        _curves(panel, str(qos), runs, chosen)
        if chosen[0]:
            panel.axvline(chosen[0][0].target_s, color="black", linewidth=0.8, linestyle=":")
    for panel, modality in zip(panels[1], modalities, strict=False):
        _curves(
            panel, modality, runs, [[job for job in run.jobs if job.row.modality == modality] for run in runs]
        )
        panel.set_xlabel("seconds")
    for panel in panels[1][len(modalities) :]:
        panel.set_axis_off()
    canvas.legend(
        *panels[0][0].get_legend_handles_labels(), fontsize=8, ncols=len(runs), loc="outside lower center"
    )
    return canvas


def _curves(panel: Any, title: str, runs: Sequence[Run], chosen: Sequence[Sequence[SimJob]]) -> None:
    panel.set_title(title, fontsize=9)
    panel.set_xscale("log")
    panel.set_xlim(0.02, 1000)
    panel.grid(alpha=0.25)
    for run, jobs in zip(runs, chosen, strict=True):
        waits = sorted(job.wait_s for job in jobs if job.wait_s is not None)
        panel.plot(*_steps(waits, len(jobs)), color=_COLORS.get(run.policy), label=run.policy, linewidth=1.3)


def _steps(values: Sequence[float], count: int, most: int = 400) -> tuple[list[float], list[float]]:
    """A cumulative curve with at most so many points."""
    every = max(1, len(values) // most)
    picked = sorted({*range(0, len(values), every), len(values) - 1}) if values else []
    return [values[place] for place in picked], [(place + 1) / count for place in picked]


def _targets_met(figure: Callable[..., Any], runs: Sequence[Run]) -> Any:
    canvas = figure(figsize=(9, 3.4), layout="constrained")
    canvas.suptitle("Attainable jobs that met their target")
    panel = canvas.subplots()
    groups = [*map(str, QosClass), "all"]
    _bars(panel, groups, runs, lambda run: [*run.summary.met.values(), run.summary.met_attainable])
    panel.set_ylim(0, 1.05)
    return canvas


def _unlucky(figure: Callable[..., Any], runs: Sequence[Run]) -> Any:
    """The last of the distribution, in units of each job's target."""
    canvas = figure(figsize=(9, 3.6), layout="constrained")
    canvas.suptitle("Waiting of the unlucky: the slowest tenth")
    panel = canvas.subplots()
    for run in runs:
        waits = sorted(job.wait_s / job.target_s for job in run.jobs if job.wait_s is not None)
        shares = [1 - place / len(waits) for place in range(len(waits))]
        begin = int(0.9 * len(waits))
        panel.plot(
            shares[begin:], waits[begin:], color=_COLORS.get(run.policy), label=run.policy, linewidth=1.3
        )
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.invert_xaxis()
    panel.set_xlabel("share of jobs that waited at least as long")
    panel.set_ylabel("wait / target")
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8)
    return canvas


def _fairness(figure: Callable[..., Any], runs: Sequence[Run]) -> Any:
    canvas = figure(figsize=(9, 3.4), layout="constrained")
    canvas.suptitle("Device time received by the last arrival, as a share of what the tenant asked for")
    panel = canvas.subplots()
    tenants = sorted({job.row.tenant for job in runs[0].jobs})
    _bars(panel, tenants, runs, lambda run: [shares_of_demand(run.jobs).get(name) for name in tenants])
    return canvas


def _bars(
    panel: Any, groups: Sequence[str], runs: Sequence[Run], values: Callable[[Run], Iterable[float | None]]
) -> None:
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(groups))]
        heights = [value or 0.0 for value in values(run)]
        panel.bar(places, heights, width, color=_COLORS.get(run.policy), label=run.policy)
    panel.set_xticks(range(len(groups)), groups, fontsize=8)
    panel.grid(axis="y", alpha=0.25)
    panel.legend(fontsize=8, ncols=len(runs), loc="lower center", bbox_to_anchor=(0.5, 1.0))
