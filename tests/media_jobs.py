"""Sounds and pictures made for tests, and a collector of what an engine emits."""

from __future__ import annotations

import threading
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import soundfile
from PIL import Image, ImageDraw, ImageFont

from ccs_broker.contract import Sampling
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed, Progress, Sized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccs_workers.engines.protocol import EngineOutput

RATE_HZ = 16_000


def tone(
    seconds: float, rate_hz: int = RATE_HZ, *, hz: float = 440.0, level: float = 0.5
) -> NDArray[np.float32]:
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    return (level * np.sin(2 * np.pi * hz * times)).astype(np.float32)


def noise(seconds: float, rate_hz: int = RATE_HZ, *, dbfs: float = -20.0) -> NDArray[np.float32]:
    values = np.random.default_rng(7).standard_normal(round(seconds * rate_hz))
    return (10 ** (dbfs / 20) * values).astype(np.float32)


def encode(
    samples: NDArray[np.generic], rate_hz: int = RATE_HZ, container: str = "WAV", **settings: object
) -> bytes:
    stream = BytesIO()
    # In pieces: libsndfile's Vorbis encoder overflows its stack on a long one.
    kind = {"channels": samples.shape[1] if samples.ndim > 1 else 1, **settings}
    with soundfile.SoundFile(stream, "w", rate_hz, format=container, **kind) as file:
        for first in range(0, len(samples), rate_hz):
            file.write(samples[first : first + rate_hz])
    return stream.getvalue()


def picture(image: Image.Image, container: str = "PNG", **settings: object) -> bytes:
    stream = BytesIO()
    image.save(stream, container, **settings)
    return stream.getvalue()


def page(lines: Sequence[str], *, size: tuple[int, int] = (900, 500), font_size: int = 32) -> Image.Image:
    """Black text on white, one line under the other, in Pillow's own font."""
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        pen.text(
            (50, 50 + number * 2 * font_size), line, fill="black", font=ImageFont.load_default(font_size)
        )
    return image


def audio_job(key: str, *sounds: bytes) -> EngineJob:
    return EngineJob(key=key, prompt="", sampling=Sampling(), seed=0, audio=sounds)


def vision_job(key: str, *images: bytes) -> EngineJob:
    return EngineJob(key=key, prompt="", sampling=Sampling(), seed=0, images=images)


class Outputs:
    """Takes what an engine emits and waits for the ends of jobs; sizes come before all else and are kept apart."""

    def __init__(self) -> None:
        self.all: list[tuple[str, EngineOutput]] = []
        self.sizes: dict[str, int] = {}
        self.step_sizes: dict[str, int] = {}
        #: Called with key and output in the engine's thread, after the output has been taken.
        self.hook = lambda key, output: None
        self._changed = threading.Condition()

    def emit(self, key: str, output: EngineOutput) -> None:
        with self._changed:
            if isinstance(output, Sized):
                assert key not in (owner for owner, _ in self.all)
                self.sizes[key], self.step_sizes[key] = output.need_bytes, output.step_bytes
                self._changed.notify_all()
                return
            self.all.append((key, output))
            self._changed.notify_all()
        self.hook(key, output)

    def of(self, key: str) -> list[EngineOutput]:
        with self._changed:
            return [output for owner, output in self.all if owner == key]

    def wait_for(self, condition: object, timeout_s: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), f"not in {timeout_s} s: {self.all}"

    def end(self, key: str, timeout_s: float = 60.0) -> Done | Failed:
        """Wait for the job's end; it must be the last output and the only end."""
        self.wait_for(lambda: any(isinstance(one, Done | Failed) for one in self.of(key)), timeout_s)
        *before, last = self.of(key)
        assert isinstance(last, Done | Failed)
        assert not any(isinstance(one, Done | Failed) for one in before)
        return last

    def done(self, key: str, timeout_s: float = 60.0) -> Done:
        end = self.end(key, timeout_s)
        assert isinstance(end, Done), end
        return end

    def text(self, key: str) -> str:
        return "".join(one.text for one in self.of(key) if isinstance(one, Delta))

    def progress(self, key: str) -> list[dict[str, object]]:
        return [dict(one.data) for one in self.of(key) if isinstance(one, Progress)]
