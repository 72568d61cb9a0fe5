"""One chaos run on this project's workers: server, fleet, load, canvases, faults, then the reckoning."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from redis import Redis
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import chaos_check as check
from benchmarks.chaos_canvas import CanvasRun
from benchmarks.chaos_faults import Injector
from benchmarks.chaos_fleet import Fleet, ccs_worker
from benchmarks.chaos_gaps import Gap, GapFinder
from benchmarks.chaos_load import Followers, LoadRun
from benchmarks.chaos_plan import POISON_AFTER_TOKENS, POISON_WORD, FaultKind, Wish, make_faults, make_wishes
from benchmarks.chaos_text import Reference, engine_load_s, models_of
from ccs_broker import topology
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from benchmarks.chaos_faults import Fault
    from benchmarks.chaos_plan import Plan

#: What the figures depend on, for whoever reads them.
ENVIRONMENT: Final = "server: append-only file, appendfsync always; killed with SIGKILL and restarted on it"
SERVER_CONFIG: Final = {"appendfsync": "always"}
#: Seconds without any end after which what is still open counts as lost: longer than any lease or back-off.
SILENCE_S: Final = 45.0
_SHOW_EVERY_S: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Result:
    """All that was found."""

    accepted: int
    repeated: int
    canvases: int
    streams: int
    faults: Sequence[Fault]
    gaps: Sequence[Gap]
    #: Jobs with a long gap.
    slow: Mapping[str, check.Record]
    engine_load_s: float
    #: Seconds of load and faults, and of all.
    load_s: float
    elapsed_s: float
    findings: check.Findings
    reader_complaints: list[str] = field(default_factory=list)
    fleet_complaints: list[str] = field(default_factory=list)
    #: Attempts beyond the first, and engine restarts under a job.
    resumed: int = 0
    #: Texts that differ from where the two best tokens tie.
    ties: int = 0
    #: Tokens behind a resume, over all jobs.
    tokens_resumed: int = 0

    def all_examples(self) -> dict[str, list[str]]:
        """What went wrong, with examples."""
        return {
            **self.findings.examples,
            **({"live readers": self.reader_complaints[:5]} if self.reader_complaints else {}),
            **({"workers": self.fleet_complaints[:5]} if self.fleet_complaints else {}),
        }


class _Run:
    """The parts of a run that is going on."""

    def __init__(self, plan: Plan, server: EmbeddedServer, fleet: Fleet, kinds: Sequence[FaultKind]) -> None:
        self.plan = plan
        self.load_s = 0.0
        self._url = server.url
        self._kinds = kinds
        self.load = LoadRun(plan, server.url, self._released)
        self.injector = Injector(plan, server, fleet, self.load)
        self.canvas = CanvasRun(server.url, plan.canvases, self._share)
        self.followers = Followers(server.url, self.load)

    def _released(self) -> int:
        """Jobs may be submitted up to the second fault from now."""
        return int((self.injector.done + 2) * self.plan.jobs / (len(self._kinds) + 1)) + 1

    def _share(self) -> float:
        return self.load.accepted / self.plan.jobs

    def go(self, wishes: Sequence[Wish], show: Callable[[int, int, int], None]) -> None:
        """Load, canvases and faults at once, until all are through or the time is over."""
        self.followers.start()
        targets: list[tuple[Callable[..., None], tuple[object, ...]]] = [
            (self.load.run, (wishes,)),
            (self.canvas.run, ()),
            (self.injector.run, (self._kinds,)),
        ]
        begun = time.monotonic()
        deadline = begun + self.plan.most_s
        with ThreadPoolExecutor(len(targets)) as pool:
            running = [pool.submit(target, *given) for target, given in targets]
            while not all(part.done() for part in running):
                # One that fails ends the run: without it the others would prove nothing, or wait for ever.
                failed = any(part.done() and part.exception() for part in running)
                if failed or time.monotonic() > deadline:
                    for part in (self.load, self.canvas, self.injector):
                        part.stop.set()
                show(self.load.accepted, self.injector.done, self.load.open_jobs)
                time.sleep(_SHOW_EVERY_S)
        for each in running:
            each.result()
        self.load_s = time.monotonic() - begun
        for part in (self.load, self.canvas):
            part.stop.clear()
        self.load.settle(SILENCE_S)
        self.canvas.settle(SILENCE_S)
        self._await_leases()
        self.followers.stop()
        show(self.load.accepted, self.injector.done, self.load.open_jobs)
        self.load.close()
        self.canvas.close()

    def _await_leases(self) -> None:
        """Let leases that outlived their jobs run out: what follows a job in Celery is then done by another worker."""
        deadline = time.monotonic() + SILENCE_S
        with Redis.from_url(self._url, socket_timeout=5.0) as client:
            while client.zcard(topology.RUNNING) and time.monotonic() < deadline:
                time.sleep(_SHOW_EVERY_S)


def run(plan: Plan, folder: Path, console: Console) -> Result:
    """Run a plan and return what was found; progress goes to the console."""
    models = models_of(plan, folder, POISON_WORD, POISON_AFTER_TOKENS)
    load_s = engine_load_s(models)
    environment = {"CCS_LEASE_S": f"{plan.lease_s:g}", "CCS_SWEEP_S": f"{plan.sweep_s:g}"}
    kinds, begun = make_faults(plan), time.monotonic()
    with EmbeddedServer(appendonly=True, config=SERVER_CONFIG) as server:
        fleet = Fleet(
            server.url, ccs_worker(server.url, models, plan.slots, environment), folder, plan.workers
        )
        try:
            fleet.start()
            wishes, reference = make_wishes(plan), Reference(models)
            if plan.engine == "text":
                wishes = reference.run(wishes, server.url)
            parts = _Run(plan, server, fleet, kinds)
            with showing(console, plan.jobs, len(kinds)) as show:
                parts.go(wishes, show)
        finally:
            fleet.stop()
        with Redis.from_url(server.url) as client:
            result = _reckon(parts, fleet, client, reference)
        result.engine_load_s = load_s
    result.elapsed_s = time.monotonic() - begun
    return result


@contextmanager
def showing(console: Console, jobs: int, faults: int) -> Iterator[Callable[[int, int, int], None]]:
    """Two bars; the function moves them to (jobs accepted, faults done, jobs open)."""
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        job_bar, fault_bar = progress.add_task("jobs", total=jobs), progress.add_task("faults", total=faults)

        def show(accepted: int, done: int, open_jobs: int) -> None:
            progress.update(job_bar, completed=accepted, description=f"jobs ({open_jobs} open)")
            progress.update(fault_bar, completed=done)

        yield show


def _reckon(parts: _Run, fleet: Fleet, client: Redis, reference: Reference) -> Result:
    finder = GapFinder(parts.injector.faults, parts.plan.step_s * 1000)
    findings = check.Findings()
    result = Result(
        accepted=len(parts.load.wishes),
        repeated=parts.load.repeated,
        canvases=len(parts.canvas.sent),
        streams=parts.followers.streams,
        faults=parts.injector.faults,
        gaps=(),
        slow=finder.slow,
        engine_load_s=0.0,
        load_s=parts.load_s,
        elapsed_s=0.0,
        findings=findings,
        reader_complaints=parts.followers.complaints,
        fleet_complaints=fleet.complaints,
    )
    cancelled = {fault.job for fault in parts.injector.faults if fault.kind is FaultKind.CANCEL}
    steps = {job: text for canvas in parts.canvas.sent for job, text in canvas.texts.items()}
    known = {*steps, *parts.canvas.refused, *reference.ids}
    seen: dict[str, str] = {}
    for record in check.read_records(client):
        seen[record.id] = record.state if record.ended else ""
        wish = parts.load.wishes.get(record.id)
        if record.ended:
            check.check_stream(record, findings)
            finder.look(record, poison=wish is not None and wish.poison)
            result.resumed += sum(entry.kind == "resumed" for entry in record.entries)
            result.tokens_resumed += record.tokens_resumed
        if wish is not None and record.ended:
            differs = bool(reference.ids) and record.text != wish.expected[: len(record.text)]
            if differs and reference.begins_at_tie(record, wish):
                result.ties += 1
                wish = replace(wish, expected=record.text)
            check.check_job(record, wish, findings, cancelled=record.id in cancelled)
        elif record.id in steps and record.ended and record.text != steps[record.id]:
            findings.add(check.TEXTS, f"{record.id}, a step of a chain or chord")
        elif wish is None and record.id not in known:
            findings.add(check.STRANGERS, f"{record.id}: {record.state}")
    result.gaps = finder.found()
    _find_missing(parts, seen, findings)
    check.check_keys(client, findings)
    return result


def _find_missing(parts: _Run, seen: dict[str, str], findings: check.Findings) -> None:
    for job, wish in parts.load.wishes.items():
        if not seen.get(job):
            findings.add(check.LOST, f"{job} ({wish.number}), {'open' if job in seen else 'gone'}")
    for canvas in parts.canvas.sent:
        states = [seen.get(job, "missing") or "open" for job in canvas.texts]
        if set(states) != {"succeeded"}:
            wrong = {
                job: state for job, state in zip(canvas.texts, states, strict=True) if state != "succeeded"
            }
            findings.add(check.CANVASES, f"{canvas.name}, the last is {canvas.last}: {wrong}")
