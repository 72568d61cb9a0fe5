"""Redis commands and round trips of a job, stage by stage, and whether they grow with what has run or waits.

Round trips and commands sent are counted on the wire (see :mod:`benchmarks.tap`): one job after another on one slot,
then many at once. What the scripts call inside is read from ``MONITOR``, call by call, with few and with 10,000 jobs
waiting; ``commandstats`` would tell the sum over all scripts only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final

from redis import Redis
from rich.console import Console

from benchmarks.monitor import Monitor
from benchmarks.report import Figure, show
from benchmarks.tap import POP, TASK_EVENTS, Tap, Traffic
from benchmarks.workers import ccs_worker
from ccs_broker import Client
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

BACKLOG: Final = 10_000
FEW: Final = 100
MANY: Final = 2_000
ONE_BY_ONE: Final = 20
STEPS: Final = (1, 8)
STEPS_AT_ONCE: Final = 3
SLOTS: Final = 8
IDLE_S: Final = 10.0
#: None of many jobs is late: what becomes of late ones depends on how many are.
UNHURRIED_S: Final = 3600.0
#: Percent by which a figure may grow.
GROWTH: Final = 5.0
#: Round trips a second of one worker, whether or not it has work.
MOST_IDLE_TRIPS: Final = 20.0
UNITS: Final = ("round trips", "commands")
#: What a worker sends for a job, besides Celery's events.
JOB_COMMANDS: Final = (POP, "claim", "append", "finish", "ack")
MODELS: Final = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
tokens_per_second = 100
[models.slow]
modality = "text"
engine = "simulated"
tokens_per_second = 0.01
"""


def cost_of(traffic: Traffic) -> Traffic:
    """The part of a worker's traffic that its jobs cause."""
    return Traffic(
        Counter({name: traffic.commands[name] for name in JOB_COMMANDS if traffic.commands[name]}),
        Counter({name: traffic.trips[name] for name in JOB_COMMANDS if traffic.trips[name]}),
    )


def one_by_one(tap: Tap, client: Client, jobs: int, tokens: int) -> Iterator[Traffic]:
    """What the worker behind a tap sends for each of some jobs, with nothing else to run."""
    for number in range(jobs):
        _await(tap.waits)
        before = tap.traffic()
        client.submit("text", prompt=str(number), max_new_tokens=tokens).result(timeout=60)
        _await(tap.waits)
        yield cost_of(tap.traffic() - before)


def _await(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit_s:g} s in vain for the worker")
        time.sleep(0.002)


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One job after another."""

    #: Traffic of the client for one submission, and for following one stream from its beginning to its end.
    submit: Traffic
    follow: Traffic
    #: Traffic of the worker for the dearest job, by the steps of the job.
    jobs: Mapping[int, Traffic]
    #: Traffic of a worker in ``IDLE_S`` seconds, with nothing to do and with all slots busy between two steps.
    idle: Traffic
    busy: Traffic


def measure_single(server: EmbeddedServer, models: Path) -> Single:
    """Run jobs one after another on one slot, then leave the worker alone."""
    with (
        Tap(server.port) as ours,
        Tap(server.port) as theirs,
        Client(theirs.url) as client,
        ccs_worker(ours.url, models, 1),
    ):
        # The first jobs load scripts and open connections.
        list(one_by_one(ours, client, 3, 1))
        jobs = {tokens: dearest(one_by_one(ours, client, ONE_BY_ONE, tokens)) for tokens in STEPS}
        before = theirs.traffic()
        job = client.submit("text", prompt="x", max_new_tokens=STEPS[-1])
        submitted = theirs.traffic()
        list(job.stream(timeout=60))
        follow = theirs.traffic() - submitted
        idle = _leave_alone(ours)
    with (
        Tap(server.port) as ours,
        ccs_worker(ours.url, models, SLOTS),
        Client(server.url) as client,
    ):
        running = [client.submit("text", prompt="x", model="slow", max_new_tokens=1) for _ in range(SLOTS)]
        _await(lambda: ours.traffic().commands["claim"] >= SLOTS)
        time.sleep(1)
        busy = _leave_alone(ours)
        for job in running:
            job.cancel()
    return Single(submit=submitted - before, follow=follow, jobs=jobs, idle=idle, busy=busy)


def dearest(costs: Iterable[Traffic]) -> Traffic:
    """The most that a job cost. (Steps that the engine takes late leave it together, and cost less.)"""
    return max(costs, key=lambda cost: cost.commands.total())


def _leave_alone(tap: Tap) -> Traffic:
    before = tap.traffic()
    time.sleep(IDLE_S)
    return tap.traffic() - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Many jobs at once, none of them cut short."""

    ended: int
    traffic: Traffic
    #: The commands inside each call of a script, by script.
    inside: Mapping[str, Sequence[int]]


def measure_many(server: EmbeddedServer, models: Path, jobs: int, behind: int) -> Many:
    """Run the first ``jobs`` that wait on one worker, while so many more wait behind them."""
    with Redis.from_url(server.url) as redis, Client(server.url) as client:
        redis.flushdb()
        for number in range(behind):
            client.submit("text", prompt=str(number), max_new_tokens=STEPS_AT_ONCE, qos="batch")
        with Monitor(server.url) as monitor, Tap(server.port) as tap:
            for number in range(jobs):
                client.submit(
                    "text", prompt=str(number), max_new_tokens=STEPS_AT_ONCE, deadline_s=UNHURRIED_S
                )
            with ccs_worker(tap.url, models, SLOTS, "--drain-seconds", "30"):
                _await(lambda: tap.traffic().commands["finish"] >= jobs)
            # It was told to end and let end what it had claimed: whatever was counted belongs to a whole job.
            traffic = tap.traffic()
    return Many(ended=traffic.commands["finish"], traffic=traffic, inside=monitor.inside)


def per_job(many: Many) -> tuple[float, float]:
    """Round trips and commands that a worker sent for a job, on average."""
    cost = cost_of(many.traffic)
    return cost.trips.total() / many.ended, cost.commands.total() / many.ended


def _single_figures(single: Single) -> list[Figure]:
    """The cost of a job by its stages; a bar is what the documents state."""
    few, more = STEPS
    first, last = single.jobs[few], single.jobs[more]
    step = (last.trips.total() - first.trips.total()) / (more - few)
    return [
        _most("submit", single.submit.trips.total(), 1, "trips"),
        _most("claim (the pop of a ticket, and a script)", last.trips[POP] + last.trips["claim"], 2, "trips"),
        _most("a step of the engine, for all its jobs", step, 1, "trips"),
        _most("outcome", last.trips["finish"], 1, "trips"),
        _most("acknowledgement", last.trips["ack"], 0, "trips"),
        *(
            _most(f"a job of {steps} steps in all: {unit}", count, 4 + steps, "")
            for steps, cost in single.jobs.items()
            for unit, count in (
                ("round trips", single.submit.trips.total() + cost.trips.total()),
                ("commands", single.submit.commands.total() + cost.commands.total()),
            )
        ),
        Figure(
            name="following a stream to its end, by whoever wants it",
            value=single.follow.trips.total(),
            unit="trips",
        ),
    ]


def _background_figures(single: Single) -> list[Figure]:
    figures = []
    for name, traffic in (("nothing to do", single.idle), (f"{SLOTS} jobs between two steps", single.busy)):
        trips, commands = traffic.trips.total() / IDLE_S, traffic.commands.total() / IDLE_S
        figures += [
            _most(f"a worker with {name}", round(trips, 1), MOST_IDLE_TRIPS, "trips/s"),
            Figure(name=f"a worker with {name}", value=commands, unit="commands/s"),
            Figure(
                name="  of these, renewals of all its leases",
                value=traffic.commands["renew"] / IDLE_S,
                unit="/s",
            ),
        ]
    return figures


def _growth_figures(few: Many, others: Mapping[str, Many]) -> list[Figure]:
    """That of few jobs first, then the others, each with what it may be at most."""
    bars = [value * (1 + GROWTH / 100) for value in per_job(few)]
    figures = [
        Figure(name=f"{FEW} jobs: {unit} a job", value=value)
        for unit, value in zip(UNITS, per_job(few), strict=True)
    ]
    for name, many in others.items():
        figures += [
            _most(f"{name}: {unit} a job", value, round(bar, 2), "")
            for unit, value, bar in zip(UNITS, per_job(many), bars, strict=True)
        ]
    events = few.traffic.commands[TASK_EVENTS] / few.ended
    return [*figures, Figure(name=f"{FEW} jobs: Celery's own events, for Flower", value=events)]


def _inside_figures(few: Many, others: Mapping[str, Many]) -> list[Figure]:
    figures = []
    for script in ("publish", "claim", "append", "finish"):
        usual = mean(few.inside[script])
        bar = round(usual * (1 + GROWTH / 100), 2)
        figures.append(Figure(name=f"{script}: {FEW} jobs", value=usual))
        for name, many in others.items():
            figures += [
                _most(f"{script}: {name}", mean(many.inside[script]), bar, ""),
                Figure(name="  the longest call", value=max(many.inside[script])),
            ]
    return figures


def _most(name: str, value: float, bar: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, bar=bar, at_most=True)


def main() -> bool:
    """Measure and print; True if every bar is met."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
        models = Path(folder) / "models.toml"
        models.write_text(MODELS)
        with Console(stderr=True).status("one job after another, then a worker left alone") as status:
            single = measure_single(server, models)
            status.update(f"{FEW} jobs at once")
            few = measure_many(server, models, FEW, 0)
            status.update(f"{MANY:,} jobs at once")
            more = measure_many(server, models, MANY, 0)
            status.update(f"{FEW} jobs with {BACKLOG:,} behind them")
            behind = measure_many(server, models, FEW, BACKLOG)
    others = {f"{MANY:,} jobs": more, f"{FEW} jobs, {BACKLOG:,} more waiting": behind}
    return all(
        [
            show(f"The dearest job of {ONE_BY_ONE}, one after another on one slot", _single_figures(single)),
            show(
                f"Sent by a worker with {SLOTS} slots, {STEPS_AT_ONCE} steps a job",
                _growth_figures(few, others),
            ),
            show("Commands that a script calls inside, a call", _inside_figures(few, others)),
            show("Sent whether or not there is work", _background_figures(single)),
        ]
    )


if __name__ == "__main__":
    sys.exit(not main())
