"""An engine that is killed during a mixed load of the three real models: do the others notice?

    python -m benchmarks.engine_kill [--models FILE]

Its jobs are to be continued, and the streams of the others to have no larger gaps after the kill than before it.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.real_load import TOPICS, Ran, fleet, followed, memory_for_all, submit
from benchmarks.report import Figure, machine, percentile, show
from benchmarks.workers import parser_with_models
from ccs_workers.models.modelfile import load_model_file

if TYPE_CHECKING:
    from ccs_broker import Client

_MODALITIES: Final = ("text", "vision", "audio")
_LOOK_EVERY_S: Final = 0.2
#: Windows of the kill: so long, and so many before it.
_WINDOW_S: Final = 10.0
_WINDOWS: Final = 4
_WARM_S: Final = 8.0


def keep_open(client: Client, modality: str, first: int, stop: threading.Event) -> list[Ran]:
    """Submit one job after another and read each live."""
    found: list[Ran] = []
    for number in count(first):
        if stop.is_set():
            return found
        job = submit(client, modality, number, tokens=160)
        found.append(followed(job, modality, number % len(TOPICS) if modality == "text" else 0))
    return found


def kill_part(models: Path, folder: Path) -> list[Figure]:
    """Kill the text engine under load; what came of it."""
    victim = load_model_file(models).default_for("text").serving.alias
    stop = threading.Event()
    with (
        fleet(models, folder, memory_for_all(models)) as worker,
        ThreadPoolExecutor(3 * len(_MODALITIES)) as threads,
    ):
        try:
            # Jobs of one input each, always three under way: the streams hardly ever pause.
            loads = [
                threads.submit(keep_open, worker.client, modality, first, stop)
                for modality in _MODALITIES
                for first in range(3)
            ]
            time.sleep(_WARM_S + _WINDOWS * _WINDOW_S)
            old = worker.pids()[victim]
            killed_ms = time.time() * 1000
            os.kill(old, signal.SIGKILL)
            while worker.pids().get(victim, old) == old and not any(load.done() for load in loads):
                time.sleep(_LOOK_EVERY_S)
            back_s = time.time() - killed_ms / 1000
            time.sleep(_WINDOW_S)
        finally:
            stop.set()
        ran = [one for load in loads for one in load.result()]
    return [*job_figures(ran, killed_ms, back_s), *gap_figures(ran, killed_ms)]


def job_figures(ran: list[Ran], killed_ms: float, back_s: float) -> list[Figure]:
    """What became of the jobs."""
    hit = [one for one in ran if one.modality == "text" and one.ran_at(killed_ms, killed_ms)]
    cut = [one for one in hit if any(event.text and event.at_ms < killed_ms for event in one.events)]
    found = [
        Figure(name="jobs", value=len(ran)),
        Figure(name="jobs failed", value=sum(not one.outcome.ok for one in ran), bar=0, at_most=True),
        Figure(name="streams with holes", value=sum(not one.whole for one in ran), bar=0, at_most=True),
        Figure(name="jobs on the engine when it was killed", value=len(hit), bar=1),
        Figure(name="  of them amid their text", value=len(cut), bar=1),
        Figure(name="  not continued", value=sum(not any(one.resumed) for one in cut), bar=0, at_most=True),
        Figure(name="jobs of other models that noticed", bar=0, at_most=True,
               value=sum(any(one.resumed) for one in ran if one.modality != "text")),
        Figure(name="text engine away", value=back_s, unit="s"),
    ]  # fmt: skip
    for modality in _MODALITIES:
        texts: dict[int, set[str]] = {}
        for one in (one for one in ran if one.modality == modality):
            texts.setdefault(one.source, set()).add(one.outcome.text)
        # Greedy text may turn on a tie between two tokens, by who else is in the batch: no matter of the kill.
        bar = None if modality == "text" else 0
        found.append(Figure(name=f"{modality}: inputs with more than one output", bar=bar, at_most=True,
                            value=sum(len(each) > 1 for each in texts.values())))  # fmt: skip
    return found


def gap_figures(ran: list[Ran], killed_ms: float) -> list[Figure]:
    """For how long nothing was heard of the other models, before the kill and after it."""
    found = []
    for modality in ("vision", "audio"):
        times = sorted(
            {event.at_ms for one in ran if one.modality == modality for event in one.events if event.attempt}
        )
        windows = []
        for position in range(-_WINDOWS, 1):
            begin_ms = killed_ms + position * _WINDOW_S * 1000
            end_ms = begin_ms + _WINDOW_S * 1000
            gaps = [(b - a) / 1000 for a, b in pairwise(times) if b > begin_ms and a < end_ms]
            if not gaps:
                raise RuntimeError(
                    f"no {modality} job said anything around the kill: nothing can be compared"
                )
            windows.append(gaps)
        *before, after = windows
        usual = max(map(max, before))
        p95 = statistics.median(percentile(each, 95) for each in before)
        found += [
            Figure(name=f"{modality}: largest gap before", value=usual, unit="s"),
            Figure(name=f"{modality}: largest gap after", value=max(after), unit="s"),
            Figure(name=f"{modality}: ratio of these", value=max(after) / usual, bar=2, at_most=True),
            Figure(name=f"{modality}: 95th percentile of gaps before", value=p95, unit="s"),
            Figure(name=f"{modality}: the same after", value=percentile(after, 95), unit="s"),
        ]
    return found


def main() -> bool:
    """Print the figures; True if every bar is met."""
    models = parser_with_models(__doc__).parse_args().models
    print(machine())
    with tempfile.TemporaryDirectory(prefix="ccs-kill-") as folder:
        found = kill_part(models, Path(folder))
    return show("An engine killed during a mixed load", found)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
