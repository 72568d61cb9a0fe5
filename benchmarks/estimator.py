"""How well device time is predicted on real engines: text, pictures and sounds of many sizes at once on one worker.

A steady load: so many jobs of each kind are always under way. A job's prediction is the one it was scored by when it
was submitted, learnt from those that had ended by then; it is held against the device time in its outcome. The first
``LEARNT`` jobs of each kind only teach.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import tempfile
import time
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image, ImageDraw, ImageFont
from redis import Redis

from benchmarks.report import Figure, show
from benchmarks.workers import ccs_worker
from ccs_broker import Client, topology
from ccs_broker.ledger.calls import text
from ccs_broker.server import EmbeddedServer
from ccs_workers.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_broker.client import JobHandle

#: Jobs of each kind that teach, and those whose predictions are judged.
LEARNT: Final = 200
JUDGED: Final = 100
BAR: Final = 0.25
FOLDER: Final = Path("~/.cache/ccs-workers/models")
MODELS: Final = """
[models.smollm2]
modality = "text"
engine = "text"
path = "{folder}/smollm2"
[models.whisper]
modality = "audio"
engine = "whisper"
path = "{folder}/whisper-tiny-en"
[models.vision]
modality = "vision"
engine = "vision"
path = "{folder}/vision"
"""
WORDS: Final = sample_path("question.txt").read_text().split()


@dataclass(slots=True)
class Kind:
    """One modality's jobs: how they are made, how many are under way at once, and what became of them."""

    modality: str
    at_once: int
    make: Callable[[random.Random], dict[str, Any]]
    running: list[JobHandle] = field(default_factory=list)
    #: Relative errors of the predictions in order: until the first output, and of the whole job.
    first: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    device_s: list[float] = field(default_factory=list)
    #: What each prediction went by.
    sizes: list[str] = field(default_factory=list)


def model_file(folder: Path) -> Path:
    """Write a model file with the prepared models."""
    path = folder / "models.toml"
    path.write_text(MODELS.format(folder=FOLDER.expanduser()))
    return path


def text_job(rng: random.Random) -> dict[str, Any]:
    """A prompt that asks for more than it gets."""
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(4, 120)))
    return {
        "prompt": f"Go on counting, up to a thousand. {words}\n1, 2, 3,",
        "max_new_tokens": rng.randrange(4, 32),
    }


def vision_job(rng: random.Random) -> dict[str, Any]:
    """One to three pages with some lines each."""
    return {"prompt": "", "images": [_page(rng, rng.randrange(1, 5)) for _ in range(rng.randrange(1, 4))]}


def audio_job(rng: random.Random) -> dict[str, Any]:
    """One to twelve seconds of speech."""
    with wave.open(str(sample_path("clip.wav"))) as clip:
        frames, rate, width = clip.readframes(clip.getnframes()), clip.getframerate(), clip.getsampwidth()
    wanted = int(rng.uniform(1, 12) * rate) * width
    sound = io.BytesIO()
    with wave.open(sound, "wb") as out:
        out.setnchannels(1)
        out.setframerate(rate)
        out.setsampwidth(width)
        out.writeframes((frames * (wanted // len(frames) + 1))[:wanted])
    return {"prompt": "", "audio": sound.getvalue()}


def _page(rng: random.Random, lines: int) -> bytes:
    picture = Image.new("RGB", (640, 60 + 50 * lines), "white")
    pen = ImageDraw.Draw(picture)
    for line in range(lines):
        words = " ".join(rng.choice(WORDS) for _ in range(4))
        pen.text((20, 30 + 50 * line), words, fill="black", font=ImageFont.load_default(24))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def judge(kind: Kind, job: JobHandle, redis: Redis) -> None:
    """Hold a job's prediction against what it took."""
    outcome = job.result(timeout=600)
    if not outcome.ok or outcome.usage.device_s is None:
        raise RuntimeError(f"a job ended {outcome.state}: {outcome.error}")
    predicted, sizes = redis.hmget(topology.JOB + job.id, "cost_us", "sizes")
    device_s = outcome.usage.device_s
    kind.cost.append(abs(float(predicted or 0) / 1e6 - device_s) / device_s)
    kind.device_s.append(device_s)
    kind.sizes.append(text(sizes or b""))


def run(kinds: list[Kind], wanted: int, client: Client, redis: Redis) -> None:
    """Keep the load steady until every kind has so many jobs behind it."""
    rng = random.Random(7)
    while any(len(kind.cost) < wanted for kind in kinds):
        for kind in kinds:
            while len(kind.running) < kind.at_once:
                kind.running.append(client.submit(kind.modality, **kind.make(rng)))
            for job in [job for job in kind.running if job.status().finished_ms is not None]:
                kind.running.remove(job)
                judge(kind, job, redis)
        time.sleep(0.02)
    for kind in kinds:
        for job in kind.running:
            job.cancel()


def main() -> bool:
    """Run and print; True if every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimator", description=__doc__)
    parser.add_argument("--learnt", type=int, default=LEARNT)
    parser.add_argument("--judged", type=int, default=JUDGED)
    parser.add_argument("--samples", type=Path, help="write sizes and device times there, as JSON")
    options, _ = parser.parse_known_args()
    kinds = [Kind("text", 3, text_job), Kind("vision", 2, vision_job), Kind("audio", 3, audio_job)]
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer() as server,
        ccs_worker(server.url, model_file(Path(folder)), 16),
        Client(server.url) as client,
        Redis.from_url(server.url) as redis,
    ):
        began = time.monotonic()
        run(kinds, options.learnt + options.judged, client, redis)
        took_s = time.monotonic() - began
    if options.samples:
        samples = {kind.modality: [kind.sizes, kind.device_s, kind.cost] for kind in kinds}
        options.samples.write_text(json.dumps(samples))
    figures = []
    for kind in kinds:
        judged = kind.cost[options.learnt :]
        figures += [
            Figure(
                name=f"{kind.modality}: median error of {len(judged)} predictions",
                value=100 * statistics.median(judged),
                unit="%",
                bar=100 * BAR,
                at_most=True,
            ),
            Figure(
                name=f"{kind.modality}: of the first 50",
                value=100 * statistics.median(kind.cost[:50]),
                unit="%",
            ),
            Figure(
                name=f"{kind.modality}: device time, 10th and 90th percentile apart",
                value=statistics.quantiles(kind.device_s, n=10)[-1]
                / statistics.quantiles(kind.device_s, n=10)[0],
                unit="x",
            ),
        ]
    return show(f"Predicted device time on real engines, a mixed load of {took_s:.0f} s", figures)


if __name__ == "__main__":
    sys.exit(not main())
