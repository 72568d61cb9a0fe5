"""Takes the server away for a minute while jobs run and wait, and measures how soon every worker claims again.

    python -m benchmarks.outage [--seconds 60] [--workers 4] [--jobs N] [--json]

The server (append-only file, appendfsync always) is killed with SIGKILL and started again on the same port. Every job
and every event is held against what was accepted: each job ends once, and none is worked on twice.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import chaos_check as check
from benchmarks.chaos_faults import now_ms
from benchmarks.chaos_fleet import Fleet, ccs_worker
from benchmarks.chaos_load import LoadRun
from benchmarks.chaos_plan import POISON_AFTER_TOKENS, POISON_WORD, Plan, Wish, make_wishes, simulated_text
from benchmarks.chaos_run import ENVIRONMENT, SERVER_CONFIG, SILENCE_S
from benchmarks.chaos_text import models_of
from benchmarks.report import Figure, as_json, machine, percentile, show
from ccs_broker import topology
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Seconds within which each worker must claim again, and write what it had finished.
BACK_S: Final = 10.0
#: Jobs a worker has that run on from before the outage until after it, and how long they then still go on.
LONG_PER_WORKER: Final = 2
LONG_BEYOND_S: Final = 15.0
SLOTS: Final = 8
#: For each slot so many jobs are open: most of them wait, so that there is something to claim at once.
OPEN_PER_SLOT: Final = 4
_POLL_S: Final = 0.05
_BEGIN_LIMIT_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class Outage:
    """All that was found. Times are in milliseconds of the machine's clock, which is the broker's as well."""

    killed_ms: int
    #: When the server was started again, not when it answered.
    back_ms: int
    accepted: int = 0
    repeated: int = 0
    #: Jobs that waited when the server was killed: what there was to claim at once.
    waiting: int = 0
    #: Jobs that had said something when the server was killed, and of these the ones that the same attempt ended later.
    running: int = 0
    ended_by_same: int = 0
    #: From the server's return until the outcome was written, of jobs that an engine had finished meanwhile.
    late_outcomes_ms: list[int] = field(default_factory=list)
    #: From the server's return to the first claim, by worker.
    claims_ms: dict[str, int] = field(default_factory=dict)
    #: Jobs of which two attempts wrote output.
    twice: int = 0
    second_attempts: int = 0
    findings: check.Findings = field(default_factory=check.Findings)
    complaints: list[str] = field(default_factory=list)


def plan_of(jobs: int, workers: int) -> Plan:
    """The workers' own lease and sweep: what is measured is what an operator gets."""
    open_jobs = workers * SLOTS * OPEN_PER_SLOT
    return Plan(jobs=jobs, workers=workers, slots=SLOTS, open_jobs=open_jobs, lease_s=10.0, sweep_s=1.0)


def run(plan: Plan, away_s: float, folder: Path, console: Console) -> Outage:
    """Run a plan with one outage in its middle; progress goes to the console."""
    models = models_of(plan, folder, POISON_WORD, POISON_AFTER_TOKENS)
    environment = {"CCS_LEASE_S": f"{plan.lease_s:g}", "CCS_SWEEP_S": f"{plan.sweep_s:g}"}
    wishes = _wishes(plan, away_s)
    with EmbeddedServer(appendonly=True, config=SERVER_CONFIG) as server:
        kind = ccs_worker(server.url, models, plan.slots, environment)
        fleet = Fleet(server.url, kind, folder, plan.workers)
        load = LoadRun(plan, server.url, lambda: len(wishes))
        loading = threading.Thread(target=load.run, args=(wishes,), daemon=True)
        try:
            fleet.start()
            nodes = [member.node for member in fleet.healthy()]
            with _Display(console, len(wishes), away_s, load) as display:
                loading.start()
                display.wait_for(lambda: _is_due(plan, load, server.url), _BEGIN_LIMIT_S)
                outage = _take_away(server, away_s, display)
                display.wait_for(lambda: not loading.is_alive(), plan.most_s)
                load.settle(SILENCE_S)
        finally:
            load.stop.set()
            fleet.stop()
        with Redis.from_url(server.url) as client:
            _reckon(outage, plan, load, client)
        load.close()
    outage.claims_ms = {node: outage.claims_ms.get(node, -1) for node in nodes}
    outage.complaints = fleet.complaints
    return outage


def _wishes(plan: Plan, away_s: float) -> list[Wish]:
    """Some jobs that run on through the outage, while all slots are free, and then the short ones."""
    wishes = make_wishes(plan)
    short_s = (
        sum(wish.tokens for wish in wishes[: plan.jobs // 2]) * plan.step_s / (plan.slots * plan.workers)
    )
    tokens = int((short_s + away_s + LONG_BEYOND_S) * plan.tokens_per_second)
    return [
        _long_wish(plan.jobs + number, tokens) for number in range(LONG_PER_WORKER * plan.workers)
    ] + wishes


def _long_wish(number: int, tokens: int) -> Wish:
    prompt = f"long job {number}"
    options = {"prompt": prompt, "max_new_tokens": tokens, "seed": number}
    expected = simulated_text(prompt, number, tokens)
    return Wish(number=number, modality="text", options=options, expected=expected)


def _is_due(plan: Plan, load: LoadRun, url: str) -> bool:
    """Half of the jobs are accepted, those that run on have said something, and enough wait for every slot."""
    if load.accepted < plan.jobs // 2:
        return False
    long = [job for job, wish in list(load.wishes.items()) if wish.number >= plan.jobs]
    with Redis.from_url(url) as client:
        waiting = sum(client.zcard(topology.WAITING + queue) for queue in topology.QUEUES)
        return waiting >= plan.slots * plan.workers and all(
            client.hexists(topology.JOB + job, "first") for job in long
        )


def _take_away(server: EmbeddedServer, away_s: float, display: _Display) -> Outage:
    killed_ms = now_ms()
    server.kill()
    until = time.monotonic() + away_s
    display.wait_for(lambda: time.monotonic() >= until, away_s + 1, away=True)
    back_ms = now_ms()
    server.start()
    return Outage(killed_ms=killed_ms, back_ms=back_ms)


def _reckon(outage: Outage, plan: Plan, load: LoadRun, client: Redis) -> None:
    outage.accepted, outage.repeated = len(load.wishes), load.repeated
    ended = set()
    for record in check.read_records(client):
        wish = load.wishes.get(record.id)
        if wish is None:
            outage.findings.add(check.STRANGERS, f"{record.id}: {record.state}")
        elif record.ended:
            ended.add(record.id)
            check.check_stream(record, outage.findings)
            check.check_job(record, wish, outage.findings, cancelled=False)
            _look(outage, plan, record, wish)
    for job in load.wishes.keys() - ended:
        outage.findings.add(check.LOST, job, None)
    check.check_keys(client, outage.findings)


def _look(outage: Outage, plan: Plan, record: check.Record, wish: Wish) -> None:
    """What one job tells of the outage."""
    begins = [entry for entry in record.entries if entry.kind in {"started", "resumed"}]
    outage.second_attempts += len(begins) > 1
    outage.twice += len({entry.attempt for entry in record.entries if entry.kind == "delta"}) > 1
    for entry in begins:
        if entry.at_ms >= outage.back_ms:
            worker, after_ms = str(entry.data["worker"]), entry.at_ms - outage.back_ms
            outage.claims_ms[worker] = min(after_ms, outage.claims_ms.get(worker, after_ms))
    end = record.entries[-1]
    outage.waiting += record.entries[0].at_ms <= outage.killed_ms < begins[0].at_ms
    first = next((entry.at_ms for entry in record.entries if entry.kind == "delta"), end.at_ms)
    if first <= outage.killed_ms < end.at_ms:
        outage.running += 1
        outage.ended_by_same += len(begins) == 1
        if begins[0].at_ms + wish.tokens * plan.step_s * 1000 < outage.back_ms:
            outage.late_outcomes_ms.append(end.at_ms - outage.back_ms)


class _Display:
    """Two bars, of the jobs and of the seconds without a server; a context manager."""

    def __init__(self, console: Console, jobs: int, away_s: float, load: LoadRun) -> None:
        columns = (
            TextColumn("{task.description:>24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._jobs = self._progress.add_task("jobs", total=jobs)
        self._away = self._progress.add_task("seconds without server", total=round(away_s))
        self._load = load

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def wait_for(self, condition: Callable[[], bool], limit_s: float, *, away: bool = False) -> None:
        """Show how it goes until something holds.

        Raises:
            RuntimeError: it didn't come to that in time.
        """
        begun = time.monotonic()
        while not condition():
            passed_s = time.monotonic() - begun
            if passed_s > limit_s:
                raise RuntimeError(f"waited {limit_s:g} s in vain; {self._load.open_jobs} jobs are open")
            name = f"jobs ({self._load.open_jobs} open)"
            self._progress.update(self._jobs, completed=self._load.accepted, description=name)
            if away:
                self._progress.update(self._away, completed=round(passed_s))
            time.sleep(_POLL_S)


def figures_of(outage: Outage) -> list[Figure]:
    """Everything that was found, each with its bar."""
    late_s = [late / 1000 for late in outage.late_outcomes_ms] or [0.0]
    return [
        Figure(name="server away", value=(outage.back_ms - outage.killed_ms) / 1000, unit="s"),
        *(
            # One that never claimed again is as bad as one that took for ever.
            _most(
                f"{node.partition('@')[0]}: next claim",
                after / 1000 if after >= 0 else float("inf"),
                BACK_S,
                "s",
            )
            for node, after in sorted(outage.claims_ms.items())
        ),
        Figure(name="jobs accepted", value=outage.accepted),
        Figure(name="submissions repeated (one job each)", value=outage.repeated),
        Figure(name="jobs waiting when it went", value=outage.waiting, bar=len(outage.claims_ms)),
        Figure(name="jobs running when it went", value=outage.running, bar=1),
        Figure(name="  of these, ended by the same attempt", value=outage.ended_by_same, bar=outage.running),
        Figure(
            name="  of these, running on when it was back",
            value=outage.running - len(outage.late_outcomes_ms),
            bar=1,
        ),
        Figure(name="  of these, finished while it was away", value=len(outage.late_outcomes_ms), bar=1),
        Figure(name="    outcome written after its return: p50", value=percentile(late_s, 50), unit="s"),
        _most("    outcome written after its return: last", max(late_s), BACK_S, "s"),
        Figure(name="jobs with a second attempt", value=outage.second_attempts),
        _most("jobs worked on by two attempts", outage.twice, 0),
        *(_most(what, outage.findings.counts[what], 0) for what in check.ALL if what != check.CANVASES),
        _most("workers that ended or hung by themselves", len(outage.complaints), 0),
    ]


def _most(name: str, value: float, bar: float, unit: str = "") -> Figure:
    return Figure(name=name, value=value, unit=unit, bar=bar, at_most=True)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run and print; True if every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="without a server")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1200)
    parser.add_argument("--keep", type=Path, help="folder for the workers' logs, which are else removed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    plan, console = plan_of(given.jobs, given.workers), Console(stderr=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outage = run(plan, given.seconds, folder, console)
    figures = figures_of(outage)
    for what, examples in {**outage.findings.examples, "workers": outage.complaints}.items():
        if examples:
            console.print(f"[red]{what}[/]", *examples, sep="\n  ", highlight=False)
    if given.json:
        print(as_json(figures))
        return all(figure.met is not False for figure in figures)
    print(machine())
    print(ENVIRONMENT)
    return show(f"{plan.workers} workers of {plan.slots} slots, lease {plan.lease_s:g} s", figures)


if __name__ == "__main__":
    sys.exit(int(not main()))
