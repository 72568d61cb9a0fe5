"""What thousands of jobs of every kind and ending leave behind: memory of the processes, keys of the server, files.

    python -m benchmarks.leaks [--jobs 2000] [--models FILE]

The same mixture runs once as a warm-up, so that caches and allocators have seen each kind of job; growth counts from
there. Keys with a time to live go by themselves, so those without one are counted.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from PIL import Image, ImageDraw
from redis import Redis

from benchmarks.report import Figure, machine, show
from benchmarks.workers import ccs_worker, parser_with_models, report_key
from ccs_broker import Client
from ccs_broker.errors import CcsError
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ccs_broker.client import JobHandle

WARM_UP: Final = 200
#: Jobs under way at once.
_OPEN: Final = 32
_WORKER_MIB: Final = 20.0
_ENGINE_MIB: Final = 50.0
_CLIP: Final = Path(__file__).parent.parent / "ccs_workers" / "samples" / "clip.wav"


def page() -> bytes:
    """A small picture with a word on it."""
    image = Image.new("RGB", (160, 64), "white")
    ImageDraw.Draw(image).text((8, 8), "word", fill="black", font_size=32)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def requests(number: int) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """So many jobs in turn: what to submit, and whether to cancel it once it runs."""
    picture, clip = page(), _CLIP.read_bytes()
    kinds: list[tuple[str, dict[str, Any], bool]] = [
        ("text", {"prompt": "Name a river.", "max_new_tokens": 8}, False),
        ("text", {"prompt": "Name a tree.", "max_new_tokens": 8, "temperature": 0.8, "seed": 7}, False),
        ("text", {"prompt": "Tell a story.", "max_new_tokens": 400}, True),
        ("text", {"prompt": "Tell a tale.", "max_new_tokens": 400, "deadline_s": 0.5}, False),
        ("text", {"prompt": "word " * 20_000, "max_new_tokens": 8}, False),
        ("vision", {"images": [picture], "prompt": ""}, False),
        ("vision", {"images": [picture[:200]], "prompt": ""}, False),
        ("vision", {"images": [picture] * 3, "prompt": ""}, True),
        ("text", {"prompt": "Say yes.", "max_new_tokens": 2, "stop": ["yes"]}, False),
        ("audio", {"audio": clip, "prompt": ""}, False),
        ("audio", {"audio": clip[:60], "prompt": ""}, False),
        ("text", {"prompt": "Count to ten.", "max_new_tokens": 4, "max_runtime_s": 0.2}, False),
    ]
    for position in range(number):
        yield kinds[position % len(kinds)]


def work_off(client: Client, number: int) -> dict[str, int]:
    """Run so many jobs, some at a time; how many ended how."""
    ends: dict[str, int] = {}
    open_jobs: list[JobHandle] = []

    def end_one() -> None:
        outcome = open_jobs.pop(0).result(timeout=600)
        word = outcome.error.code if outcome.error else outcome.state.value
        ends[word] = ends.get(word, 0) + 1

    for modality, arguments, cancelled in requests(number):
        while len(open_jobs) >= _OPEN:
            end_one()
        try:
            job = client.submit(modality, overload="accept", **arguments)
        except CcsError as error:
            ends[f"refused {error.code}"] = ends.get(f"refused {error.code}", 0) + 1
            continue
        open_jobs.append(job)
        if cancelled:
            for event in job.stream(timeout=600):
                if event.kind.value in {"delta", "progress"} or event.kind.terminal:
                    break
            job.cancel()
    while open_jobs:
        end_one()
    return ends


def settled_bytes(pid: int) -> int:
    """What a process has resident, once it falls no more."""
    process, least, since = psutil.Process(pid), sys.maxsize, time.monotonic()
    while time.monotonic() - since < 5.0:
        now = process.memory_info().rss
        if now < least - 2**20:
            since = time.monotonic()
        least = min(least, now)
        time.sleep(0.25)
    return least


def files_of(folder: Path) -> set[str]:
    """Everything that lies in a folder."""
    return {str(path) for path in folder.rglob("*")}


def measure(given: argparse.Namespace, folder: Path) -> list[Figure]:
    """Warm up, look, run, look again."""
    scratch = folder / "tmp"
    scratch.mkdir()
    os.environ["TMPDIR"] = str(scratch)
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        redis = stack.enter_context(Redis.from_url(server.url))
        models = given.models
        node = stack.enter_context(ccs_worker(server.url, models, 16, log_folder=folder))
        client = stack.enter_context(Client(server.url))
        work_off(client, WARM_UP)
        report = json.loads(redis.get(report_key(node)) or b"{}")
        pids = {
            "worker": report["pid"],
            **{model["alias"]: model["pid"] for model in report["models"] if model["pid"]},
        }
        keys_before, files_before = lasting_keys(redis), files_of(scratch)
        before = {name: settled_bytes(pid) for name, pid in pids.items()}
        began = time.monotonic()
        ends = work_off(client, given.jobs)
        elapsed_s = time.monotonic() - began
        after = {name: settled_bytes(pid) for name, pid in pids.items()}
        left = lasting_keys(redis) - keys_before
        for key in sorted(left)[:10]:
            print("left:", key.decode(errors="replace"))
        return [
            Figure(name="jobs", value=sum(ends.values())),
            *(Figure(name=f"  {word}", value=count) for word, count in sorted(ends.items())),
            *(
                Figure(name=f"growth of {name}", value=(after[name] - before[name]) / 2**20, unit="MiB",
                       bar=_WORKER_MIB if name == "worker" else _ENGINE_MIB, at_most=True)
                for name in pids
            ),
            Figure(name="keys without a time to live that were not there before", value=len(left), bar=0, at_most=True),
            Figure(name="files left", value=len(files_of(scratch) - files_before), bar=0, at_most=True),
            Figure(name="all of it", value=elapsed_s, unit="s"),
        ]  # fmt: skip


def lasting_keys(redis: Redis) -> set[bytes]:
    """The server's keys that nothing will remove by itself."""
    keys = list(redis.scan_iter(count=1000))
    with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.ttl(key)
        return {key for key, ttl in zip(keys, pipe.execute(), strict=True) if ttl == -1}


def main() -> bool:
    """Print the figures; True if every bar is met."""
    parser = parser_with_models(__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="ccs-leaks-") as folder:
        found = measure(given, Path(folder))
    return show("What jobs leave behind", found)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
