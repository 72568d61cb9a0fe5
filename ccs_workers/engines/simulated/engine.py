"""The simulated engine: one thread that says each job's words when they are due.

An answer depends on prompt, media and seed alone. A continued job goes on with the next word; what earlier attempts
emitted costs no time, and is checked first: with other options or another prompt it would be of another answer.
"""

from __future__ import annotations

import heapq
import threading
import time
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from ccs_broker.contract import Usage
from ccs_broker.errors import EngineError
from ccs_workers.engines.faults import as_engine_error
from ccs_workers.engines.protocol import Delta, Done, EngineInfo, EngineJob, Failed, Progress, Resume, Sized
from ccs_workers.engines.simulated.faults import Faults
from ccs_workers.engines.simulated.holding import Holding
from ccs_workers.engines.simulated.limits import check_context, engine_info, need_bytes
from ccs_workers.engines.simulated.options import SimulatedOptions
from ccs_workers.engines.simulated.words import audio_seconds, digest_of, piece_at, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_workers.engines.protocol import Emit, FinishReason
    from ccs_workers.models.spec import ModelSpec

__all__ = ["SimulatedEngine"]


@dataclass(slots=True, order=True)
class _Run:
    """A job that runs; ``parts`` and ``tokens`` count its progress and delta outputs, those before it too."""

    due: float = field(default=0.0, init=False)
    order: int
    job: EngineJob = field(compare=False)
    parts: int = field(compare=False)
    tokens: int = field(compare=False)
    steps: Iterator[tuple[float, Delta | Progress]] = field(compare=False)
    #: None: only the job's end is left.
    next_output: Delta | Progress | None = field(default=None, init=False, compare=False)

    def usage(self) -> Usage:
        """What the job has used so far, in all its attempts."""
        images = len(self.job.images)
        return Usage(
            prompt_tokens=len(self.job.prompt.split()),
            completion_tokens=self.tokens,
            images=min(self.parts, images),
            audio_s=audio_seconds(self.job) if self.parts > images else 0.0,
        )


class SimulatedEngine:
    """Answers every job word by word at the stated pace; any number at once, without slowing each other.

    Options: see ``SimulatedOptions`` and ``FaultOptions``.
    """

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        self._spec = spec
        self._emit = emit
        self._options = SimulatedOptions.of(spec)
        rate = self._options.tokens_per_second
        self._token_s = 1.0 / rate if rate else 0.0
        self._live: set[str] = set()
        self._cancelled: set[str] = set()
        self._runs: list[_Run] = []
        self._held: Holding[_Run] = Holding()
        self._order = 0
        self._wake = threading.Condition()
        self._closed = threading.Event()
        self._faults = Faults(self._options.faults, self._closed)

    def load(self) -> EngineInfo:
        """Take the stated time to load."""
        time.sleep(self._options.load_seconds)
        threading.Thread(target=self._work, name="ccs-simulated", daemon=True).start()
        return engine_info(self._spec, self._options)

    def start(self, job: EngineJob) -> None:
        """Take a job."""
        check_context(job, self._options)
        earlier = job.resume or Resume(text="")
        parts, tokens = len(earlier.progress), len(earlier.token_ids)
        self._faults.on_start(job.prompt, tokens)
        steps = self._steps(job, earlier)
        need = need_bytes(job, self._options)
        with self._wake:
            self._order += 1
            run = _Run(order=self._order, job=job, parts=parts, tokens=tokens, steps=steps)
            self._live.add(job.key)
            if need or job.memory_bytes:
                self._emit(job.key, Sized(need_bytes=need))
            if not self._held.hold(job.key, run, need, job.memory_bytes):
                self._begin(run)

    def _begin(self, run: _Run, *, cancelled: bool = False) -> None:
        """Let a job's first output be due, or its end; the lock is held."""
        delay_s, run.next_output = next(run.steps, (0.0, None))
        run.due = time.monotonic() + (0.0 if cancelled else delay_s)
        heapq.heappush(self._runs, run)
        self._wake.notify()

    def _steps(self, job: EngineJob, earlier: Resume) -> Iterator[tuple[float, Delta | Progress]]:
        """Return the outputs behind what ``earlier`` holds, each with the seconds it takes."""
        digest, parts = digest_of(job), self._parts(job)
        most, done = min(job.sampling.max_new_tokens, self._options.tokens), len(earlier.token_ids)
        first = [part.data for _, part in parts[: len(earlier.progress)]]
        if (
            [dict(data) for data in earlier.progress] != first
            or (done and len(first) < len(parts))
            or earlier.token_ids != tuple(range(min(done, most)))
            or earlier.text != text_of(digest, done)
        ):
            raise EngineError(
                "the job can't be continued: what was emitted before isn't the beginning of its answer"
            )
        words = (
            (self._token_s, Delta(text=piece_at(digest, position), token_ids=(position,)))
            for position in range(done, most)
        )
        return chain(parts[len(first) :], words)

    def _parts(self, job: EngineJob) -> list[tuple[float, Progress]]:
        images = len(job.images)
        parts = [
            (self._options.seconds_per_image, Progress(data={"image": number, "images": images}))
            for number in range(1, images + 1)
        ]
        if job.audio:
            listening_s = self._options.seconds_per_audio_second * audio_seconds(job)
            parts.append((listening_s, Progress(data={"window": 1, "windows": 1})))
        return parts

    def _work(self) -> None:
        while not self._closed.is_set():
            # Held by nobody while the thread waits: what a job brought goes with it.
            self._step_due()

    def _step_due(self) -> None:
        """Take the step that is due, or wait for one."""
        with self._wake:
            wait_s = self._runs[0].due - time.monotonic() if self._runs else None
            if wait_s is None or wait_s > 0:
                self._wake.wait(wait_s)
                return
            run = heapq.heappop(self._runs)
        self._step(run)

    def _step(self, run: _Run) -> None:
        if run.job.key in self._cancelled:
            self._end(run, "cancelled")
            return
        try:
            self._faults.on_step(run.job.prompt, run.tokens)
        except (MemoryError, RuntimeError) as error:
            told = as_engine_error(error, need_bytes=need_bytes(run.job, self._options) or None)
            self._finish(run, Failed(code=told.code, message=told.message))
            return
        # A step may have outlasted the engine.
        if self._closed.is_set():
            return
        output = run.next_output
        if output is None:
            self._end(run, "length")
            return
        if isinstance(output, Delta):
            run.tokens += 1
        else:
            run.parts += 1
        self._emit(run.job.key, output)
        delay_s, run.next_output = next(run.steps, (0.0, None))
        # From the time it was due, not from now: a late wake-up must not slow the stated pace.
        run.due += delay_s
        with self._wake:
            heapq.heappush(self._runs, run)

    def _end(self, run: _Run, reason: FinishReason) -> None:
        self._finish(run, Done(finish_reason=reason, usage=run.usage(), data={"simulated": True}))

    def _finish(self, run: _Run, output: Done | Failed) -> None:
        with self._wake:
            self._live.discard(run.job.key)
            self._cancelled.discard(run.job.key)
        self._emit(run.job.key, output)

    def cancel(self, key: str) -> None:
        """Stop a job at its next step."""
        with self._wake:
            if key in self._live:
                self._cancelled.add(key)
            if (run := self._held.take(key)) is not None:
                self._begin(run, cancelled=True)

    def grant(self, key: str, memory_bytes: int) -> None:
        """Let a job go on that was held, if that is enough for it."""
        with self._wake:
            if (run := self._held.grant(key, memory_bytes)) is not None:
                self._begin(run)

    def close(self) -> None:
        """Stop."""
        with self._wake:
            self._closed.set()
            self._wake.notify()
