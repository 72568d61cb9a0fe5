"""Ten times as much work as a device has memory, of all modalities at once: does anything fail, and is the memory used?

    python -m benchmarks.oversubscribe                       real engines in a memory cgroup that kills past the limit
    python -m benchmarks.oversubscribe --engine simulated    thousands of simulated jobs

Reservations, pools and footprints are those of the worker's report, taken with what its processes were measured to use.
A sample counts for the use of memory while jobs wait in every queue: then nothing but memory, or what the policy keeps
free, can hold a claim back. It keeps 5 % from interactive jobs, which these are.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
import threading
import time
import wave
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image, ImageDraw
from redis import Redis

from benchmarks.memory_group import MemoryGroup, memory_group
from benchmarks.report import Figure, machine, percentile, show
from benchmarks.workers import ccs_worker, parser_with_models, report_key
from ccs_broker import Client, topology
from ccs_broker.contract.build import build_job
from ccs_broker.ledger import Need
from ccs_broker.ledger.entries import sizes_of
from ccs_broker.server import EmbeddedServer
from ccs_workers.models.modelfile import load_model_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ccs_broker.contract import Job

TIMES: Final = 10
_SAMPLE_EVERY_S: Final = 0.25
_LIMIT_S: Final = 3600.0
#: Bytes of all jobs of a modality as a share of all: a page takes seconds to read, an answer that stops early doesn't.
_SHARES: Final = {"text": 0.8, "vision": 0.1, "audio": 0.1}
_PROMPTS: Final = ("Name a river.", "Name a tree and say where it grows.", "What is a ledger?", "Say yes.")
#: Of a sound, what is spoken, and how often.
_SPOKEN_S, _EVERY_S = 2, 120
_SIMULATED: Final = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
tokens_per_second = 20
memory_bytes = {memory}
weights_bytes = {weights}
bytes_per_job = 1_000_000
bytes_per_token = 40_000
[models.eyes]
modality = "vision"
shares = "sim"
[models.ears]
modality = "audio"
shares = "sim"
"""


@dataclass(slots=True)
class Samples:
    """What was seen while the jobs ran."""

    #: Reserved by jobs over what jobs can have, while work waits for every queue.
    filled: list[float] = field(default_factory=list)
    #: By engine: (reserved - measured peak) / measured peak.
    over: dict[str, list[float]] = field(default_factory=dict)
    group_peak_bytes: int = 0
    jobs_at_most: int = 0
    beyond_budget: int = 0


class Watcher:
    """Takes samples from the worker's report, the queues and the cgroup until it is told to stop."""

    def __init__(self, url: str, node: str, group: MemoryGroup | None) -> None:
        self.samples = Samples()
        self._redis = Redis.from_url(url)
        self._node = node
        self._group = group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def report(self) -> dict[str, Any]:
        """The worker's last report."""
        found: dict[str, Any] = json.loads(self._redis.get(report_key(self._node)) or b"{}")
        return found

    def _run(self) -> None:
        last = None
        while not self._stop.wait(_SAMPLE_EVERY_S):
            if self._group is not None:
                self.samples.group_peak_bytes = max(self.samples.group_peak_bytes, self._group.used_bytes)
            memory = self.report().get("memory")
            if not memory or memory == last or memory["budget"] is None:
                continue
            last = memory
            self._take(memory)

    def _take(self, memory: dict[str, Any]) -> None:
        engines = memory["engines"]
        taken = sum(engine["fixed"] + (0 if engine["pool"] else engine["jobs_bytes"]) for engine in engines)
        self.samples.beyond_budget += taken > memory["budget"]
        jobs = sum(engine["jobs"] for engine in engines)
        self.samples.jobs_at_most = max(self.samples.jobs_at_most, jobs)
        fixed = sum(engine["fixed"] - engine["pool"] for engine in engines)
        waiting = [self._redis.zcard(topology.WAITING + queue) for queue in topology.QUEUES[:3]]
        if all(waiting):
            self.samples.filled.append(
                sum(engine["jobs_bytes"] for engine in engines) / (memory["budget"] - fixed)
            )
        for engine in engines:
            # An engine without jobs uses less than its largest step, which is what it holds memory for.
            if engine["peak"] and engine["jobs"]:
                over = (engine["held_at_peak"] - engine["peak"]) / engine["peak"]
                self.samples.over.setdefault(engine["alias"], []).append(over)

    def stop(self) -> Samples:
        """End; what was seen."""
        self._stop.set()
        self._thread.join()
        self._redis.close()
        return self.samples


def sound(seconds: float) -> bytes:
    """A sentence every two minutes, silence between them: long to read, quick to listen to."""
    clip = Path(__file__).parent.parent / "ccs_workers" / "samples" / "clip.wav"
    buffer = io.BytesIO()
    with wave.open(str(clip)) as source, wave.open(buffer, "wb") as made:
        made.setparams(source.getparams())
        spoken = source.readframes(_SPOKEN_S * source.getframerate())
        whole = bytes(_EVERY_S * source.getframerate() * source.getsampwidth() * source.getnchannels())
        made.writeframes((spoken + whole[len(spoken) :]) * round(seconds / _EVERY_S))
    return buffer.getvalue()


def picture(side: int, text: str) -> bytes:
    """A large, mostly white page with a line on it."""
    image = Image.new("RGB", (side, side), "white")
    ImageDraw.Draw(image).text((40, 40), text, fill="black", font_size=side // 20)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def requests(engine: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Jobs without end, of a size that a device holds a few of; those of a modality in turn."""
    large = engine == "text"
    media = {
        "vision": [picture(side if large else 64, f"page {side}") for side in (3000, 4000, 5000)],
        "audio": [sound(seconds if large else 1) for seconds in (240, 480)],
    }
    number = 0
    while True:
        number += 1
        text: dict[str, Any] = {"prompt": _PROMPTS[number % len(_PROMPTS)], "max_new_tokens": 400}
        if large:
            # Memory is reserved for the longest answer; most end at their first full stop.
            text |= {
                "max_new_tokens": 150 + 250 * (number % 3),
                "stop": ["\n", "."],
                "temperature": 0.7,
                "seed": number,
            }
        yield "text", text
        yield "vision", {"images": [media["vision"][number % 3]], "prompt": "", "max_new_tokens": 32}
        yield "audio", {"audio": media["audio"][number % 2], "prompt": "", "max_new_tokens": 32}


def worth(memory: dict[str, Any], aliases: dict[str, str], job: Job) -> int:
    """Bytes that the worker expects a job to hold."""
    engine = next(one for one in memory["engines"] if one["alias"] == aliases[job.modality.value])
    return Need(coefficients=tuple(engine["need"])).bytes_for(sizes_of(job).values())


def measure(given: argparse.Namespace, folder: Path) -> list[Figure]:
    """One run; its figures."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        group, options = None, ["--modalities", "text,vision,audio"]
        if given.engine == "text":
            models = given.models
            group = stack.enter_context(memory_group(given.budget_mib * 2**20))
        else:
            models = folder / "models.toml"
            models.write_text(
                _SIMULATED.format(memory=given.budget_mib * 2**20, weights=given.budget_mib * 2**18)
            )
        node = stack.enter_context(
            ccs_worker(
                server.url,
                models,
                given.slots,
                *options,
                inside=group.inside if group else list,
                log_folder=folder,
            )
        )
        return run(given, server.url, node, group, models)


def run(
    given: argparse.Namespace, url: str, node: str, group: MemoryGroup | None, models: Path
) -> list[Figure]:
    """Submit everything at once, wait for all, count."""
    watcher = Watcher(url, node, group)
    catalog = load_model_file(models)
    aliases = {modality.value: catalog.default_for(modality).serving.alias for modality in catalog.modalities}
    memory = watcher.report()["memory"]
    wanted = TIMES * given.budget_mib * 2**20
    sums = dict.fromkeys(_SHARES, 0)
    began = time.monotonic()
    with Client(url) as client:
        jobs = []
        for modality, arguments in requests(given.engine):
            if sum(sums.values()) >= wanted:
                break
            if sums[modality] >= _SHARES[modality] * wanted:
                continue
            jobs.append(client.submit(modality, qos="interactive", overload="accept", **arguments))
            sums[modality] += worth(memory, aliases, build_job(modality, arguments, job_id="x").job)
        outcomes = [job.result(timeout=max(1.0, _LIMIT_S - (time.monotonic() - began))) for job in jobs]
    samples = watcher.stop()
    return figures(samples, outcomes, group, sums, time.monotonic() - began)


def figures(
    samples: Samples, outcomes: list[Any], group: MemoryGroup | None, sums: dict[str, int], elapsed_s: float
) -> list[Figure]:
    """What must be seen."""
    codes = [outcome.error.code for outcome in outcomes if outcome.error]
    found = [
        Figure(name="jobs", value=len(outcomes)),
        *(Figure(name=f"  {name}, worth", value=size / 2**30, unit="GiB") for name, size in sums.items()),
        Figure(name="failed for memory", value=codes.count("OUT_OF_MEMORY"), bar=0, at_most=True),
        Figure(name="failed otherwise", value=len(codes) - codes.count("OUT_OF_MEMORY"), bar=0, at_most=True),
        Figure(name="samples beyond the budget", value=samples.beyond_budget, bar=0, at_most=True),
        Figure(name="jobs at once, at most", value=samples.jobs_at_most),
        Figure(name="samples while work waits for all queues", value=len(samples.filled)),
    ]
    if samples.filled:
        found.append(Figure(name="memory for jobs that is reserved, mean", value=100 * statistics.mean(samples.filled),
                            unit="%", bar=85))  # fmt: skip
    for alias, over in sorted(samples.over.items()):
        found += [
            Figure(name=f"{alias}: held over measured peak, median", value=100 * statistics.median(over), unit="%",
                   bar=20, at_most=True),
            Figure(name=f"{alias}: the same, least", value=100 * min(over), unit="%", bar=-5),
            Figure(name=f"{alias}: the same, 95th percentile", value=100 * percentile(over, 95), unit="%"),
        ]  # fmt: skip
    if group is not None:
        found += [
            Figure(name="kernel kills", value=group.kills, bar=0, at_most=True),
            Figure(name="highest use of the group", value=samples.group_peak_bytes / 2**30, unit="GiB"),
        ]
    return [*found, Figure(name="all of it", value=elapsed_s, unit="s")]


def main() -> bool:
    """Print the figures; True if every bar is met."""
    parser = parser_with_models(__doc__)
    parser.add_argument("--engine", choices=("text", "simulated"), default="text")
    parser.add_argument("--budget-mib", type=int, default=4608)
    parser.add_argument("--slots", type=int, default=512)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="ccs-oversubscribe-") as folder:
        found = measure(given, Path(folder))
    return show(f"{TIMES} times the memory at once, {given.engine} engines, {given.budget_mib} MiB", found)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
