"""Models that take turns in memory that doesn't hold them all: is everybody served, within the times that are promised?

    python -m benchmarks.switching [--seconds 180] [--models FILE]

A first worker, which holds all three models, tells their footprints. From them follows the memory of the second one, in
which any two fit and three don't. When models came and went is read from that worker's log, which is exact to the
millisecond where its reports are two seconds apart; that processes ended, and that no job was running then, from the
processes and the jobs' own streams. The times that they are held against are those of docs/memory.md.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.real_load import TOPICS, Fleet, Ran, fleet, followed, memory_for_all, submit
from benchmarks.report import Figure, machine, show
from benchmarks.workers import parser_with_models
from ccs_broker import topology
from ccs_workers.admission.footprints import stated_footprint
from ccs_workers.admission.residency import ResidencyRules
from ccs_workers.executor.residency import DRAIN_S
from ccs_workers.models.modelfile import load_model_file

if TYPE_CHECKING:
    from ccs_broker.client import JobHandle

RULES: Final = ResidencyRules()
#: Jobs of each model in ten, and most of them that are open at once.
_SHARES: Final = {"text": 7, "vision": 2, "audio": 1}
_OPEN: Final = {"text": 28, "vision": 8, "audio": 4}
#: Jobs submitted in a second: more than two cores work off while one model is always out.
_PACE: Final = 2.0
_LOOK_EVERY_S: Final = 0.2
#: By how much log lines may come later or earlier than what they tell.
_SLACK_S: Final = 0.1
_LINE: Final = re.compile(r"\[(?P<at>[\d-]+ [\d:,]+): INFO/\w+\] model (?P<alias>\S+) (?P<what>.*)")
_READY: Final = re.compile(r"is ready on \S+ after (?P<load>[\d.]+) s")


@dataclass(slots=True)
class Stay:
    """A model's time in memory; seconds since 1970."""

    alias: str
    ready_at: float
    load_s: float
    #: When it was chosen to go, and when it had gone; 0 while it is there.
    chosen_at: float = 0.0
    gone_at: float = 0.0

    @property
    def least_s(self) -> float:
        """Its minimum stay."""
        return max(RULES.stay_s, RULES.stay_per_load * self.load_s)


def stays_of(log: Path) -> list[Stay]:
    """Who came and went, by the worker's log."""
    stays: dict[str, Stay] = {}
    done: list[Stay] = []
    wanted, room_at = "", dict[str, float]()
    for found in filter(None, map(_LINE.match, log.read_text(errors="replace").splitlines())):
        at = datetime.strptime(found["at"], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
        alias, what = found["alias"], found["what"]
        if ready := _READY.match(what):
            # After an eviction the worker counts from then on, and so does the minimum stay.
            load_s = at - room_at.pop(alias) if alias in room_at else float(ready["load"])
            stays[alias] = Stay(alias, at, load_s)
        elif what.startswith("makes room for") and alias in stays:
            stays[alias].chosen_at, wanted = at, what.split()[-1]
        elif what == "has made room" and alias in stays:
            stays[alias].gone_at = room_at[wanted] = at
            done.append(stays.pop(alias))
    return [*done, *stays.values()]


@dataclass(slots=True)
class Seen:
    """What a look every 0.2 s saw: engine processes that ended, and in how many looks jobs waited."""

    looks: int = 0
    waiting: int = 0
    #: Model, when its process was there last and when it was gone, in ms.
    ends: list[tuple[str, float, float]] = field(default_factory=list)


def watch(worker: Fleet, stop: threading.Event, seen: Seen) -> None:
    """Look until told to stop."""
    known: dict[int, tuple[str, float]] = {}
    while not stop.wait(_LOOK_EVERY_S):
        now = time.time() * 1000
        for alias, pid in worker.pids().items():
            known.setdefault(pid, (alias, now))
        for pid, (alias, last) in list(known.items()):
            if psutil.pid_exists(pid):
                known[pid] = (alias, now)
            elif not any(end[:2] == (alias, last) for end in seen.ends):
                seen.ends.append((alias, last, now))
        seen.looks += 1
        seen.waiting += any(worker.redis.zcard(topology.WAITING + queue) for queue in topology.QUEUES[:3])


def bring(worker: Fleet, modality: str) -> list[Ran]:
    """Have a model loaded by a job, while text jobs keep the text model from being the one that goes."""
    job = submit(worker.client, modality, 0)
    ran = []
    while not job.status().state.terminal:
        ran.append(followed(submit(worker.client, "text", 0, tokens=8), "text", 0))
    return [*ran, followed(job, modality, 0)]


def quiet_step(worker: Fleet) -> tuple[list[Figure], list[Ran]]:
    """Resident memory before a model is loaded in place of another, while it is there, and after it has gone."""
    ran = [one for modality in ("audio", "audio") for one in bring(worker, modality)]
    models = {model["alias"]: model["modality"] for model in worker.report()["models"]}
    before, each = worker.resident_bytes()
    there = worker.pids()
    ran += bring(worker, "vision")
    between, _ = worker.resident_bytes()
    ran += bring(worker, "audio")
    after, each_after = worker.resident_bytes()
    if set(worker.pids()) != set(there):
        raise RuntimeError(f"other models are loaded than before: {sorted(worker.pids())}")
    stayed = [pid for pid in each if pid in each_after]
    kept, kept_after = (sum(of[pid] for pid in stayed) for of in (each, each_after))
    names = " and ".join(sorted(models[alias] for alias in there))
    return [
        Figure(name=f"resident with {names}", value=before / 2**20, unit="MiB"),
        Figure(name="the same while vision is there for audio", value=between / 2**20, unit="MiB"),
        Figure(name="the same after its eviction, against before", value=100 * (after / before - 1), unit="%",
               bar=5, at_most=True),
        Figure(name="  of the processes that stayed", value=100 * (kept_after / kept - 1), unit="%", bar=5,
               at_most=True),
    ], ran  # fmt: skip


def mixed_load(worker: Fleet, seconds: float) -> list[Ran]:
    """Text most, then vision, audio least, at a pace that keeps jobs waiting; then wait for all."""
    cycle = [modality for modality, share in _SHARES.items() for _ in range(share)]
    cycle = [cycle[position * 3 % len(cycle)] for position in range(len(cycle))]
    jobs: list[tuple[JobHandle, str, int]] = []
    began = time.monotonic()
    for number in count():
        time.sleep(max(0.0, began + number / _PACE - time.monotonic()))
        if time.monotonic() - began > seconds:
            break
        modality = cycle[number % len(cycle)]
        depth = {queue.name: queue.waiting + queue.running for queue in worker.client.queues().queues}
        if depth.get(topology.QUEUES[list(_SHARES).index(modality)], 0) < _OPEN[modality]:
            jobs.append((submit(worker.client, modality, number), modality, number % len(TOPICS)))
    return [followed(*each) for each in jobs]


def turns_memory(models: Path, footprints: dict[str, int]) -> int:
    """Bytes in which any two models fit and three don't, as measured, with the estimate for a first load too."""
    specs = load_model_file(models).specs
    stated = {spec.alias: stated_footprint(spec).fixed_bytes for spec in specs}
    first = specs[0].alias
    # The first one is loaded alone and known from then on; others come beside it, or beside each other.
    pairs = (footprints[a] + stated[b] for a in stated for b in stated if b not in (a, first))
    least, most = max(stated[first], *pairs), sum(footprints.values())
    if least >= most:
        raise RuntimeError(f"no amount holds any two models and not all three: {least} and {most} bytes")
    return (least + most) // 2


def turns_part(models: Path, folder: Path, memory_bytes: int, seconds: float) -> list[Figure]:
    """One run in so much memory; its figures."""
    stop, seen = threading.Event(), Seen()
    with fleet(models, folder, memory_bytes) as worker:
        watching = threading.Thread(target=watch, args=(worker, stop, seen), daemon=True)
        watching.start()
        try:
            found, quiet = quiet_step(worker)
            began = time.monotonic()
            ran = mixed_load(worker, seconds)
            elapsed_s = time.monotonic() - began
            # Its process has gone before a model says that it made room, and is seen by the next look.
            time.sleep(2 * _LOOK_EVERY_S)
        finally:
            stop.set()
            watching.join()
        stays = stays_of(worker.log)
        aliases = {model["alias"]: model["modality"] for model in worker.report()["models"]}
    return [
        Figure(name="memory", value=memory_bytes / 2**20, unit="MiB"),
        *found,
        *served_figures(ran, quiet, seen, elapsed_s),
        *stay_figures(stays, [*ran, *quiet], seen, aliases),
        *wait_figures(ran, stays, aliases),
    ]


def served_figures(ran: list[Ran], quiet: list[Ran], seen: Seen, elapsed_s: float) -> list[Figure]:
    """What became of the jobs."""
    handed_back = sum(event.kind == "preempted" for one in ran for event in one.events)
    return [
        *(
            Figure(name=f"{modality} jobs", value=sum(one.modality == modality for one in ran))
            for modality in _SHARES
        ),
        Figure(
            name="jobs not served",
            value=sum(not one.outcome.ok for one in [*ran, *quiet]),
            bar=0,
            at_most=True,
        ),
        Figure(name="streams with holes", value=sum(not one.whole for one in ran), bar=0, at_most=True),
        Figure(name="times a job was handed back", value=handed_back),
        Figure(name="looks at which jobs waited", value=100 * seen.waiting / max(1, seen.looks), unit="%"),
        Figure(name="from the first job to the last end", value=elapsed_s, unit="s"),
    ]


def stay_figures(stays: list[Stay], ran: list[Ran], seen: Seen, aliases: dict[str, str]) -> list[Figure]:
    """How often models went, after which time, and whether jobs ran on them then."""
    gone = sorted((stay for stay in stays if stay.gone_at), key=lambda stay: stay.gone_at)
    rate = max((sum(0 <= b.gone_at - a.gone_at < 60 for b in gone) for a in gone), default=0)
    torn = sum(
        any(one.modality == aliases[alias] and one.ran_at(last, end) for one in ran)
        for alias, last, end in seen.ends
    )
    died = sum("the engine died" in one.resumed for one in ran)
    found = [
        Figure(name="evictions", value=len(gone), bar=1),
        *(
            Figure(name=f"  of {alias}", value=sum(stay.alias == alias for stay in gone))
            for alias in sorted(aliases)
        ),
        Figure(
            name="engines that ended, beside those",
            value=abs(len(seen.ends) - len(gone)),
            bar=0,
            at_most=True,
        ),
        Figure(name="most evictions in a minute", value=rate, bar=RULES.switches_per_minute, at_most=True),
        Figure(name="engines that ended while jobs ran", value=torn, bar=0, at_most=True),
        Figure(name="jobs whose engine died", value=died, bar=0, at_most=True),
    ]
    if gone:
        nearest = min(gone, key=lambda stay: stay.chosen_at - stay.ready_at - stay.least_s)
        spare_s = nearest.chosen_at - nearest.ready_at - nearest.least_s
        found += [
            Figure(name="shortest stay until a model had gone", unit="s",
                   value=min(stay.gone_at - stay.ready_at for stay in gone)),
            Figure(name="least time from the minimum stay's end to the choice", value=spare_s, unit="s", bar=-_SLACK_S),
            Figure(name="  that minimum stay", value=nearest.least_s, unit="s"),
            Figure(name="longest from the choice until a model had gone", unit="s",
                   value=max(stay.gone_at - stay.chosen_at for stay in gone)),
        ]  # fmt: skip
    return found


def wait_figures(ran: list[Ran], stays: list[Stay], aliases: dict[str, str]) -> list[Figure]:
    """How long jobs waited for their first output, against what docs/memory.md says of the least used model."""
    found = []
    longest: dict[str, float] = {}
    for modality in _SHARES:
        firsts = [one.outcome.timings.first_output_s for one in ran if one.modality == modality]
        longest[modality] = max((first for first in firsts if first is not None), default=0.0)
        found.append(
            Figure(name=f"longest until a first output: {modality}", value=longest[modality], unit="s")
        )
    least = list(_SHARES)[-1]
    loads = [stay.load_s for stay in stays if aliases[stay.alias] == least]
    others = [stay.least_s for stay in stays if aliases[stay.alias] != least]
    runs = [own_run_s(one) for one in ran if one.modality == least]
    patience_s = RULES.patience_s + RULES.patience_per_load * max(loads, default=0.0)
    bar = patience_s + max(others, default=0.0) + DRAIN_S + max(loads, default=0.0) + max(runs, default=0.0)
    return [
        *found,
        Figure(
            name=f"{least}: the same, and what it may be",
            value=longest[least],
            unit="s",
            bar=bar,
            at_most=True,
        ),
        Figure(name="  of that: its patience", value=patience_s, unit="s"),
        Figure(name="  another's minimum stay", value=max(others, default=0.0), unit="s"),
        Figure(name="  its loading", value=max(loads, default=0.0), unit="s"),
        Figure(name="  its own run", value=max(runs, default=0.0), unit="s"),
    ]


def own_run_s(one: Ran) -> float:
    """Seconds from the last start of a job to its end."""
    starts = [event.at_ms for event in one.events if event.kind in {"started", "resumed"}]
    return (one.events[-1].at_ms - starts[-1]) / 1000 if starts else 0.0


def footprints_of(models: Path, folder: Path) -> dict[str, int]:
    """What each model's engine was measured to hold, by a worker that holds them all."""
    with fleet(models, folder, memory_for_all(models)) as worker:
        return {one["alias"]: one["fixed"] for one in worker.report()["memory"]["engines"]}


def main() -> bool:
    """Print the figures; True if every bar is met."""
    parser = parser_with_models(__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of the mixed load")
    given = parser.parse_args()
    models = given.models
    print(machine())
    with tempfile.TemporaryDirectory(prefix="ccs-switching-") as folder:
        memory_bytes = turns_memory(models, footprints_of(models, Path(folder)))
        found = turns_part(models, Path(folder), memory_bytes, given.seconds)
    return show("Models that take turns", found)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
