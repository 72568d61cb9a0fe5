"""A stand-in for a model, for scheduling, scale and chaos: it needs no torch and is never presented as one.

Its text depends on prompt, media and seed alone. Options: ``tokens_per_second`` (0: at once), ``seconds_per_image``,
``seconds_per_audio_second`` (bytes of a 16 kHz 16-bit mono file stand for its length), ``load_seconds``,
``weights_bytes``, ``bytes_per_job``, ``bytes_per_token``, ``context_tokens``, and ``tokens`` (most tokens of an answer,
whatever the job asks for).
"""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ccs_broker.contract import Usage
from ccs_broker.errors import ConfigurationError, ContextTooLongError
from ccs_workers.engines.protocol import Delta, Done, EngineInfo, EngineJob, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_workers.engines.protocol import Emit
    from ccs_workers.models.spec import ModelSpec

_WORDS: Final = (
    "amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch", "maple",
    "north", "ocean", "pearl", "quartz", "ridge", "slate", "tundra", "umber", "vale", "willow", "xenon", "yarrow",
    "zephyr",
)  # fmt: skip
_BYTES_PER_AUDIO_SECOND: Final = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """Times of the simulated device."""

    token_s: float
    image_s: float
    audio_s_per_s: float


@dataclass(order=True, slots=True)
class _Run:
    due: float
    order: int
    job: EngineJob = field(compare=False)
    steps: Iterator[tuple[float, Delta | Progress | Done]] = field(compare=False)
    next_output: Delta | Progress | Done = field(compare=False)


def word_at(digest: bytes, position: int) -> str:
    """The token at a position: a word that depends on the job's digest and the position alone."""
    chosen = hashlib.blake2b(digest + position.to_bytes(8, "big"), digest_size=2).digest()
    return _WORDS[int.from_bytes(chosen, "big") % len(_WORDS)]


def digest_of(job: EngineJob) -> bytes:
    """What a simulated answer depends on."""
    state = hashlib.blake2b(digest_size=16)
    for piece in (job.prompt.encode(), *job.images, *job.audio, str(job.seed).encode()):
        state.update(len(piece).to_bytes(8, "big") + piece)
    return state.digest()


class SimulatedEngine:
    """Answers every job word by word at the stated pace; any number at once, without slowing each other."""

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        self._spec = spec
        self._emit = emit
        rate = self._number("tokens_per_second", 0.0)
        self._pace = _Pace(
            token_s=1.0 / rate if rate else 0.0,
            image_s=self._number("seconds_per_image", 0.0),
            audio_s_per_s=self._number("seconds_per_audio_second", 0.0),
        )
        self._context_tokens = int(self._number("context_tokens", 1_000_000))
        self._most_tokens = int(self._number("tokens", 1_000_000))
        self._live: set[str] = set()
        self._cancelled: set[str] = set()
        self._runs: list[_Run] = []
        self._order = 0
        self._wake = threading.Condition()
        self._closed = False

    def _number(self, option: str, default: float) -> float:
        value = self._spec.options.get(option, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigurationError(
                f"model {self._spec.alias!r}: option {option!r} must be a number, 0 or more"
            )
        return float(value)

    def load(self) -> EngineInfo:
        """Take the stated time to load."""
        load_s = self._number("load_seconds", 0.0)
        time.sleep(load_s)
        threading.Thread(target=self._run, name="ccs-simulated", daemon=True).start()
        return EngineInfo(
            alias=self._spec.alias,
            modality=self._spec.modality,
            device="simulated",
            dtype="none",
            weights_bytes=int(self._number("weights_bytes", 0)),
            load_s=load_s,
            context_tokens=self._context_tokens,
        )

    def start(self, job: EngineJob) -> None:
        """Take a job."""
        prompt_tokens = len(job.prompt.split())
        if prompt_tokens + job.sampling.max_new_tokens > self._context_tokens:
            raise ContextTooLongError(
                f"{prompt_tokens} prompt tokens and {job.sampling.max_new_tokens} new ones exceed the "
                f"context of {self._context_tokens} tokens"
            )
        steps = self._steps(job, prompt_tokens)
        delay_s, output = next(steps)
        with self._wake:
            self._order += 1
            self._live.add(job.key)
            heapq.heappush(self._runs, _Run(time.monotonic() + delay_s, self._order, job, steps, output))
            self._wake.notify()

    def _steps(self, job: EngineJob, prompt_tokens: int) -> Iterator[tuple[float, Delta | Progress | Done]]:
        images, audio_s = len(job.images), sum(map(len, job.audio)) / _BYTES_PER_AUDIO_SECOND
        for number in range(1, images + 1):
            yield self._pace.image_s, Progress(data={"image": number, "images": images})
        if job.audio:
            yield self._pace.audio_s_per_s * audio_s, Progress(data={"window": 1, "windows": 1})
        digest, tokens = digest_of(job), min(job.sampling.max_new_tokens, self._most_tokens)
        for position in range(tokens):
            word = word_at(digest, position)
            text = word if position == 0 else f" {word}"
            yield self._pace.token_s, Delta(text=text, token_ids=(position,))
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=tokens, images=images, audio_s=audio_s)
        yield 0.0, Done(finish_reason="length", usage=usage, data={"simulated": True})

    def _run(self) -> None:
        while not self._closed:
            with self._wake:
                wait_s = self._runs[0].due - time.monotonic() if self._runs else None
                if wait_s is None or wait_s > 0:
                    self._wake.wait(wait_s)
                    continue
                run = heapq.heappop(self._runs)
            self._step(run)

    def _step(self, run: _Run) -> None:
        key = run.job.key
        output: Delta | Progress | Done = run.next_output
        if key in self._cancelled:
            output = Done(finish_reason="cancelled", usage=Usage())
        if isinstance(output, Done):
            with self._wake:
                self._live.discard(key)
                self._cancelled.discard(key)
            self._emit(key, output)
            return
        self._emit(key, output)
        delay_s, run.next_output = next(run.steps)
        # From the time it was due, not from now: a late wake-up must not slow the stated pace.
        run.due += delay_s
        with self._wake:
            heapq.heappush(self._runs, run)

    def cancel(self, key: str) -> None:
        """Stop a job at its next step."""
        with self._wake:
            if key in self._live:
                self._cancelled.add(key)

    def close(self) -> None:
        """Stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
