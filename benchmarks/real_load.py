"""Small jobs on the three real models, and the worker that they run on."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from redis import Redis

from benchmarks.workers import ccs_worker, report_key
from ccs_broker import Client
from ccs_broker.server import EmbeddedServer
from ccs_workers.admission.footprints import stated_footprint
from ccs_workers.models.modelfile import load_model_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_broker.client import JobHandle
    from ccs_broker.contract import Event, Outcome

_JOB_LIMIT_S: Final = 600.0
_JOBS_BYTES: Final = 2**30
_SAMPLES: Final = Path(__file__).parent.parent / "ccs_workers" / "samples"
#: Of text jobs; there are as many inputs.
TOPICS: Final = ("rivers", "clocks", "bread", "maps", "glass", "bees", "tides", "chess")


@dataclass(slots=True)
class Ran:
    """A job that has ended, and all that its stream told."""

    modality: str
    source: int
    events: list[Event]
    outcome: Outcome

    @property
    def whole(self) -> bool:
        """Whether the stream has no hole and one end, and says what the outcome says."""
        numbers = [event.seq for event in self.events]
        ends = sum(event.terminal for event in self.events)
        text = "".join(event.text for event in self.events)
        return numbers == list(range(1, len(numbers) + 1)) and ends == 1 and text == self.outcome.text

    @property
    def resumed(self) -> list[str]:
        """Reasons for which it went on behind what it had said; empty for one that was handed back."""
        return [str(event.data.get("reason", "")) for event in self.events if event.kind == "resumed"]

    def ran_at(self, begin_ms: float, end_ms: float) -> bool:
        """Whether one attempt ran all the time between these."""
        since = None
        for event in self.events:
            if event.kind == "preempted" or event.terminal:
                if since is not None and since < begin_ms and event.at_ms > end_ms:
                    return True
                since = None
            elif since is None and event.attempt:
                since = event.at_ms
        return False


def submit(client: Client, modality: str, source: int, tokens: int = 24) -> JobHandle:
    """A small job; the same ``source`` of the same modality is the same input."""
    if modality == "text":
        prompt = f"Tell a long story about {TOPICS[source % len(TOPICS)]}."
        return client.submit("text", overload="accept", prompt=prompt, max_new_tokens=tokens)
    if modality == "vision":
        return client.submit("vision", overload="accept", images=[_SAMPLES / "page.png"], prompt="")
    return client.submit("audio", overload="accept", audio=_SAMPLES / "clip.wav", prompt="")


def followed(job: JobHandle, modality: str, source: int) -> Ran:
    """Read a job's stream to its end."""
    events = list(job.stream(timeout=_JOB_LIMIT_S))
    return Ran(modality, source, events, job.result(timeout=_JOB_LIMIT_S))


class Fleet:
    """A worker, its server and what it tells."""

    def __init__(self, url: str, node: str, folder: Path) -> None:
        self.client = Client(url)
        self.redis = Redis.from_url(url)
        self._key = report_key(node)
        self.log = folder / f"{node.partition('@')[0]}.log"

    def report(self) -> dict[str, Any]:
        """The worker's last report."""
        found: dict[str, Any] = json.loads(self.redis.get(self._key) or b"{}")
        return found

    def pids(self) -> dict[str, int]:
        """Engine processes by model."""
        models = self.report().get("models", [])
        return {
            model["alias"]: model["pid"] for model in models if model["pid"] and model["state"] == "ready"
        }

    def resident_bytes(self) -> tuple[int, dict[int, int]]:
        """What worker and engines hold once it falls no more: all of it, and each process.

        Of pages that several share each counts its part, so the sum is theirs, whoever of them ends.
        """
        least, each, since = sys.maxsize, {}, time.monotonic()
        root = psutil.Process(self.report()["pid"])
        while time.monotonic() - since < 4.0:
            now = {one.pid: one.memory_full_info().pss for one in (root, *root.children(recursive=True))}
            if (total := sum(now.values())) < least - 2**20:
                since = time.monotonic()
            if total < least:
                least, each = total, now
            time.sleep(0.5)
        return least, each

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self.redis.close()


def memory_for_all(models: Path) -> int:
    """Bytes that hold every model of a file, by the estimates for their first loads, and jobs beside them."""
    return sum(stated_footprint(spec).fixed_bytes for spec in load_model_file(models).specs) + _JOBS_BYTES


@contextmanager
def fleet(models: Path, folder: Path, memory_bytes: int) -> Iterator[Fleet]:
    """A worker with so much memory, and a server for it."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        # The later of two log levels counts: the log says when models come and go.
        options = ("--memory", str(memory_bytes), "--log-level", "info")
        node = stack.enter_context(ccs_worker(server.url, models, 16, *options, log_folder=folder))
        found = Fleet(server.url, node, folder)
        stack.callback(found.close)
        yield found
