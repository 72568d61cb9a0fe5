"""Loads a real model in this process and runs mixed jobs at once: ``memory_run KIND FOLDER [BYTES]``.

Prints as JSON what the engine said it and its jobs need, and what the process really held. ``BYTES`` is the size
from which blocks are mapped by themselves, instead of the usual one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.signal import resample_poly

from ccs_broker.contract import Modality, Sampling
from ccs_workers.engines import footprint
from ccs_workers.engines.footprint import footprint_of, give_back
from ccs_workers.engines.protocol import EngineJob
from ccs_workers.engines.registry import engine_maker
from ccs_workers.models.spec import ModelSpec
from tests.media_jobs import Outputs, audio_job, encode, page, picture, vision_job
from tests.speech import SHORT_CLIP

FOLDERS = {"text": "smollm2", "whisper": "whisper-tiny-en", "vision": "vision"}
MODALITIES = {"text": Modality.TEXT, "whisper": Modality.AUDIO, "vision": Modality.VISION}
ROUNDS = 2


def text_jobs() -> list[EngineJob]:
    return [
        EngineJob(
            key=f"text {number}",
            prompt="The quick brown fox jumps over the lazy dog. " * (1 + 3 * number),
            sampling=Sampling(max_new_tokens=4 + number, temperature=0.8 * (number % 2), top_p=0.9),
            seed=number,
        )
        for number in range(12)
    ]


def vision_jobs() -> list[EngineJob]:
    lines = ("WATER WILL BE OFF", "from 9:30 to 11:45")
    smooth = np.random.default_rng(5).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    photo = Image.fromarray(smooth).resize((4000, 3000), Image.Resampling.BICUBIC)
    letter = page(lines, size=(1240, 1754))
    deep = Image.fromarray(np.full((1000, 1400), 40_000, np.uint16))
    pictures = [
        picture(letter),
        picture(photo, "JPEG", quality=90),
        picture(photo.resize((3000, 2000)), "JPEG", progressive=True),
        picture(photo.resize((2000, 1500)), "WEBP"),
        picture(letter.convert("L"), "TIFF"),
        picture(letter.convert("P"), "GIF"),
        picture(deep),
        picture(page(lines, size=(5200, 3900), font_size=90)),
        picture(letter.convert("RGBA")),
        picture(page(lines, size=(640, 480))),
        picture(photo.resize((1600, 1200)), "BMP"),
    ]
    jobs = [vision_job(f"vision {number}", data) for number, data in enumerate(pictures)]
    return [*jobs, vision_job("vision both", pictures[0], pictures[2])]


def audio_jobs() -> list[EngineJob]:
    import soundfile

    samples, rate_hz = soundfile.read(SHORT_CLIP, dtype="float32")
    speech = resample_poly(samples, 16_000, rate_hz).astype(np.float32)
    long = np.concatenate([speech, np.zeros(8_000, np.float32)] * 12)[: 40 * 16_000]
    high = resample_poly(speech, 3, 1).astype(np.float32)
    stereo = np.stack([high, high], axis=1)
    sounds = [
        encode(speech),
        encode(long),
        encode(stereo, 48_000),
        encode(stereo, 48_000, "FLAC"),
        encode(speech, 16_000, "OGG", subtype="VORBIS"),
        encode(high, 48_000, "MP3"),
        encode(np.zeros(90 * 48_000, np.float32), 48_000),
        encode(np.zeros((70 * 96_000, 2), np.float32), 96_000),
        encode(long, 16_000, "FLAC"),
        encode(speech, 16_000, subtype="FLOAT"),
        encode(speech, 16_000, "AIFF"),
        encode(resample_poly(speech, 1, 2).astype(np.float32), 8_000),
    ]
    return [audio_job(f"audio {number}", data) for number, data in enumerate(sounds)]


JOBS = {"text": text_jobs, "whisper": audio_jobs, "vision": vision_jobs}


def main(kind: str, folder: Path) -> None:
    spec = ModelSpec(
        alias=kind,
        modality=MODALITIES[kind],
        engine=kind,
        path=folder / FOLDERS[kind],
        device="cpu",
        options={},
    )
    outputs, meter = Outputs(), footprint_of("cpu")
    engine = engine_maker(kind)(spec, outputs.emit)
    info = engine.load()
    loading = meter.use()
    jobs = JOBS[kind]()
    give_back()
    told: dict[str, object] = {
        "fixed": info.fixed_bytes,
        "pool": info.pool_bytes,
        "load_s": info.load_s,
        "need": info.need,
        "load_peak": loading.peak_bytes,
        "rest": meter.use().used_bytes,
        "estimates": {job.key: estimate(info.need, job) for job in jobs},
        "rounds": [],
    }
    for number in range(ROUNDS):
        began = time.monotonic()
        with meter.lap() as lap:
            for job in jobs:
                engine.start(replace(job, key=f"{job.key} {number}" if number else job.key))
            for job in jobs:
                outputs.done(f"{job.key} {number}" if number else job.key, 120)
        seconds, peak = time.monotonic() - began, lap.peak_bytes
        used = meter.use().used_bytes
        before = time.monotonic()
        give_back()
        giving_s = time.monotonic() - before
        told["rounds"].append(  # type: ignore[attr-defined]
            {
                "s": seconds,
                "peak": peak,
                "used": used,
                "kept": meter.use().used_bytes,
                "giving_s": giving_s,
            }
        )
    told["sizes"] = {key: outputs.sizes[key] for key in (job.key for job in jobs)}
    # One step is taken at a time: what only a step takes counts once.
    steps = [outputs.step_sizes[job.key] for job in jobs]
    told["together"] = sum(outputs.sizes[job.key] for job in jobs) - sum(steps) + max(steps)
    engine.close()
    print(json.dumps(told))  # noqa: T201 - its only output
    sys.stdout.flush()
    os._exit(0)


def estimate(need: tuple[float, ...], job: EngineJob) -> float:
    sizes = (
        1,
        len(job.prompt),
        job.sampling.max_new_tokens,
        len(job.images),
        sum(map(len, job.images + job.audio)),
    )
    return sum(factor * size for factor, size in zip(need, sizes, strict=True))


if __name__ == "__main__":
    if sys.argv[3:]:
        footprint._MAP_FROM_BYTES = int(sys.argv[3])
    main(sys.argv[1], Path(sys.argv[2]).expanduser())
