"""A simulated engine at the pace of a modelled device that works on all its jobs together, iteration by iteration.

The device is that of ``ccs simulate``, so that a real worker can be compared with the simulator. What it answers is
what the other simulated engine answers, but it tells no progress: a job's first output is its first token, as in the
device's model.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ccs_broker.contract import Usage
from ccs_broker.errors import ConfigurationError, EngineError
from ccs_broker.simulate.device import Device, Run
from ccs_broker.simulate.model import DeviceModel
from ccs_workers.engines.protocol import Delta, Done, EngineInfo, EngineJob, Resume, Sized
from ccs_workers.engines.simulated.holding import Holding
from ccs_workers.engines.simulated.limits import check_context, engine_info, need_bytes
from ccs_workers.engines.simulated.options import SimulatedOptions
from ccs_workers.engines.simulated.words import audio_seconds, digest_of, piece_at, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccs_broker.simulate.device import Step
    from ccs_workers.engines.protocol import Emit, FinishReason
    from ccs_workers.models.spec import ModelSpec

__all__ = ["ReferenceEngine"]

#: Seconds by which the device may lag behind its pace before what it lost is lost: a machine that slept doesn't hurry.
_MOST_LAG_S: Final = 0.5


@dataclass(slots=True, eq=False)
class _Work:
    """A job on the device; ``said`` counts its tokens that were emitted, also by earlier attempts."""

    job: EngineJob
    run: Run
    digest: bytes
    said: int


class ReferenceEngine:
    """Answers word by word as a modelled device would give the tokens.

    Options: ``reference`` and ``time_scale``, see ``SimulatedOptions``; those of pace and faults don't count.
    """

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        self._spec = spec
        self._emit = emit
        self._options = SimulatedOptions.of(spec)
        if self._options.reference is None:
            raise ConfigurationError(f"model {spec.alias!r}: option 'reference' names a device file")
        self._model = DeviceModel.from_file(self._options.reference)
        self._device = Device(self._model)
        self._works: dict[str, _Work] = {}
        self._arrived: list[EngineJob] = []
        self._held: Holding[EngineJob] = Holding()
        self._cancelled: set[str] = set()
        self._wake = threading.Condition()
        self._closed = threading.Event()

    def load(self) -> EngineInfo:
        """Take the stated time to load."""
        time.sleep(self._options.load_seconds)
        threading.Thread(target=self._work, name="ccs-reference", daemon=True).start()
        return engine_info(self._spec, self._options)

    def start(self, job: EngineJob) -> None:
        """Take a job; the device's next iteration knows it."""
        check_context(job, self._options)
        earlier = job.resume or Resume(text="")
        done = len(earlier.token_ids)
        if earlier.token_ids != tuple(range(done)) or earlier.text != text_of(digest_of(job), done):
            raise EngineError(
                "the job can't be continued: what was emitted before isn't the beginning of its answer"
            )
        need = need_bytes(job, self._options)
        with self._wake:
            if need or job.memory_bytes:
                self._emit(job.key, Sized(need_bytes=need))
            if not self._held.hold(job.key, job, need, job.memory_bytes):
                self._arrived.append(job)
                self._wake.notify()

    def cancel(self, key: str) -> None:
        """Take a job off at the end of the iteration."""
        with self._wake:
            if (job := self._held.take(key)) is not None:
                self._arrived.append(job)
            self._cancelled.add(key)
            self._wake.notify()

    def grant(self, key: str, memory_bytes: int) -> None:
        """Let a job go on that was held, if that is enough for it."""
        with self._wake:
            if (job := self._held.grant(key, memory_bytes)) is not None:
                self._arrived.append(job)
                self._wake.notify()

    def close(self) -> None:
        """Stop."""
        with self._wake:
            self._closed.set()
            self._wake.notify()

    def _work(self) -> None:
        due = time.monotonic()
        while not self._closed.is_set():
            with self._wake:
                self._wake.wait_for(self._has_work)
            # Held by nobody while the thread waits: what a job brought goes with it.
            due = self._iterate(due)

    def _iterate(self, due: float) -> float:
        """Take what has come, run an iteration, and return when it was due to end."""
        with self._wake:
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = self._cancelled, set()
        now = time.monotonic()
        # An idle device begins when a job comes; a busy one when its last iteration was due to end.
        due = max(due, now - _MOST_LAG_S) if len(self._device) else now
        for job in arrived:
            self._take(job)
        self._take_off(cancelled)
        if not len(self._device):
            return due
        step = self._device.step()
        due += step.seconds / self._options.time_scale
        if not self._closed.wait(max(0.0, due - time.monotonic())):
            self._tell(step)
        return due

    def _has_work(self) -> bool:
        return bool(self._closed.is_set() or self._arrived or self._cancelled or self._works)

    def _take(self, job: EngineJob) -> None:
        most = min(job.sampling.max_new_tokens, self._options.tokens)
        done = len(job.resume.token_ids) if job.resume else 0
        if done >= most:
            # All was said before; only the end had been lost.
            self._emit_done(job, "length", self._usage(job, done, 0.0), None)
            return
        demand = self._model.demand(
            images=len(job.images),
            audio_s=audio_seconds(job),
            context_tokens=len(job.prompt.split()),
            new_tokens=most,
        )
        run = self._device.add(job.key, demand, score=job.score, floor=job.floor, generated=done)
        self._works[job.key] = _Work(job, run, digest_of(job), done)

    def _take_off(self, keys: Iterable[str]) -> None:
        for key in keys:
            if (work := self._works.get(key)) is not None:
                self._device.remove(work.run)
                self._end(work, "cancelled")

    def _tell(self, step: Step) -> None:
        """Emit what an iteration brought."""
        for run in (*self._device.decoding(), *step.ended):
            work = self._works[run.key]
            positions = range(work.said, run.generated)
            if positions:
                text = "".join(piece_at(work.digest, position) for position in positions)
                self._emit(run.key, Delta(text=text, token_ids=tuple(positions)))
                work.said = run.generated
        for run in step.ended:
            self._end(self._works[run.key], "length")

    def _end(self, work: _Work, reason: FinishReason) -> None:
        del self._works[work.job.key]
        usage = self._usage(work.job, work.said, work.run.device_s)
        self._emit_done(work.job, reason, usage, work.run.first_device_s)

    def _emit_done(self, job: EngineJob, reason: FinishReason, usage: Usage, first_s: float | None) -> None:
        done = Done(
            finish_reason=reason,
            usage=usage,
            first_device_s=None if first_s is None else first_s / self._options.time_scale,
            data={"simulated": True},
        )
        self._emit(job.key, done)

    def _usage(self, job: EngineJob, tokens: int, device_s: float) -> Usage:
        return Usage(
            prompt_tokens=len(job.prompt.split()),
            completion_tokens=tokens,
            images=len(job.images),
            audio_s=audio_seconds(job),
            device_s=device_s / self._options.time_scale,
        )
