"""Kills, freezes and cuts everything while jobs run, and then counts what was lost, doubled, torn or changed.

    python -m benchmarks.chaos [--jobs N] [--faults N] [--workers 4] [--seed S] [--engine simulated|text] [--stock]

One private server with its append-only file (appendfsync always), some workers, one submitting client, two live
readers, chains and chords through Celery. Everything that is random follows from the seed, but when it happens
follows from the load. With ``--stock`` the same number of jobs and faults is given to stock Celery afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import chaos_check as check
from benchmarks.chaos_plan import FaultKind, Plan
from benchmarks.chaos_run import ENVIRONMENT, Result, run
from benchmarks.chaos_stock import run_stock
from benchmarks.report import Figure, as_json, machine, percentile, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chaos_stock import StockResult

#: Seconds that the issue allows beyond the lease, and beyond the time an engine takes to load.
_LEASE_SPARE_S = 2.0
_LOAD_SPARE_S = 1.0
_DRAIN_S = 1.0


def figures_of(plan: Plan, result: Result) -> list[Figure]:
    """Everything that was found, each with its bar."""
    figures = [
        Figure(name="jobs accepted", value=result.accepted),
        Figure(name="submissions repeated (one job each)", value=result.repeated),
        Figure(name="faults", value=len(result.faults)),
        *(
            Figure(name=f"  {kind.value}", value=sum(fault.kind is kind for fault in result.faults))
            for kind in FaultKind
        ),
        Figure(name="attempts beyond the first, engine restarts", value=result.resumed),
        Figure(name="chains and chords sent", value=result.canvases),
        Figure(name="streams read live", value=result.streams),
        *(_none(what, result.findings.counts[what]) for what in check.ALL),
        _none("live readers that saw anything else", len(result.reader_complaints)),
        _none("workers that ended or hung by themselves", len(result.fleet_complaints)),
        *_gap_figures(plan, result),
        Figure(name="faults and load", value=result.load_s, unit="s"),
        Figure(name="whole run", value=result.elapsed_s, unit="s"),
    ]
    if plan.engine == "text":
        ties = 10_000 * result.ties / max(1, result.tokens_resumed)
        figures += [
            Figure(name="texts that differ from a tie of the two best tokens on", value=result.ties),
            Figure(name="tokens decoded behind a resume", value=result.tokens_resumed),
            Figure(name="such ties in 10,000 of these", value=ties, bar=1, at_most=True),
        ]
    return figures


def _none(name: str, count: int) -> Figure:
    return Figure(name=name, value=count, bar=0, at_most=True)


def _gap_figures(plan: Plan, result: Result) -> list[Figure]:
    bars_s = {
        FaultKind.WORKER_KILL.value: plan.lease_s + _LEASE_SPARE_S,
        FaultKind.DRAIN.value: _DRAIN_S,
        FaultKind.ENGINE_KILL.value: result.engine_load_s + _LOAD_SPARE_S,
        FaultKind.CANCEL.value: 2 * plan.step_s,
    }
    figures = []
    for cause in sorted({gap.cause for gap in result.gaps}):
        every = [gap.ms for gap in result.gaps if gap.cause == cause]
        clear = [gap.ms for gap in result.gaps if gap.cause == cause and not gap.disturbed]
        bar_s = bars_s.get(cause) if plan.engine == "simulated" or cause != FaultKind.CANCEL else None
        bar = None if bar_s is None else round(bar_s * 1000)
        if clear:
            p50, p95 = percentile(clear, 50), percentile(clear, 95)
            figures += [
                Figure(name=f"after {cause}: p50 of {len(clear)}", value=p50, unit="ms"),
                Figure(name=f"after {cause}: p95", value=p95, unit="ms", bar=bar, at_most=True),
            ]
        if len(every) > len(clear):
            name = f"after {cause}: p95 of {len(every)}, other faults between"
            figures.append(Figure(name=name, value=percentile(every, 95), unit="ms"))
    return figures


def _stock_figures(stock: StockResult) -> list[Figure]:
    return [
        Figure(name="stock: tasks accepted", value=stock.accepted),
        Figure(name="stock: faults (of the kinds that apply)", value=stock.faults),
        Figure(name="stock: lost: accepted, never ended", value=stock.lost),
        Figure(name="stock: ended more than once (effect doubled)", value=stock.ended_twice),
        Figure(name="stock: begun more than once", value=stock.begun_twice),
        Figure(name="stock: workers that ended or hung by themselves", value=stock.complaints),
        Figure(name="stock: whole run", value=stock.elapsed_s, unit="s"),
    ]


def _details(result: Result) -> str:
    """Faults and gaps one by one, and jobs that went wrong, to see what lies behind a figure."""
    return json.dumps(
        {
            "faults": [asdict(fault) for fault in result.faults],
            "gaps": [asdict(gap) for gap in result.gaps],
            "slow": [asdict(record) for record in result.slow.values()],
            "wrong": [asdict(record) for record in result.findings.records.values()],
        },
        indent=1,
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    standard = Plan()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=standard.jobs)
    parser.add_argument("--faults", type=int, default=standard.faults)
    parser.add_argument("--workers", type=int, default=standard.workers)
    parser.add_argument("--seed", type=int, default=standard.seed)
    parser.add_argument("--engine", choices=("simulated", "text"), default=standard.engine)
    parser.add_argument("--canvas", type=int, default=standard.canvases, help="chains, and as many chords")
    parser.add_argument("--stock", action="store_true", help="the same for stock Celery afterwards")
    parser.add_argument("--minutes-at-most", type=float, default=standard.most_s / 60)
    parser.add_argument("--keep", type=Path, help="folder for the workers' logs, which are else removed")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run and print; True if every bar is met."""
    given = _arguments(arguments)
    plan = Plan(
        jobs=given.jobs,
        faults=given.faults,
        workers=given.workers,
        seed=given.seed,
        engine=given.engine,
        canvases=given.canvas if given.engine == "simulated" else 0,
        # One worker alone must have room for all that is open: recovery is measured, not queueing.
        slots=64 if given.engine == "simulated" else 16,
        open_jobs=32 if given.engine == "simulated" else 12,
        most_s=given.minutes_at_most * 60,
    )
    console = Console(stderr=True)
    stock = None
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = run(plan, folder, console)
        if given.stock:
            stock = run_stock(plan, folder, console, result.load_s)
        if given.keep:
            given.keep.joinpath("chaos.json").write_text(_details(result))
    figures = figures_of(plan, result)
    for what, examples in result.all_examples().items():
        console.print(f"[red]{what}[/]", *examples, sep="\n  ", markup=True, highlight=False)
    if given.json:
        figures += _stock_figures(stock) if stock else []
        print(as_json(figures))
        return all(each.met is not False for each in figures)
    print(machine())
    print(ENVIRONMENT)
    met = show(
        f"{plan.workers} workers, {plan.engine} engine, lease {plan.lease_s:g} s, seed {plan.seed}", figures
    )
    if stock:
        show("Stock Celery: late ack, prefetch 1, visibility timeout 30 s, threads", _stock_figures(stock))
    return met


if __name__ == "__main__":
    sys.exit(int(not main()))
