"""The Whisper engine: listens to a sound window by window and tells what was said after each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ccs_broker.contract import Usage
from ccs_broker.errors import EngineError, InvalidInputError
from ccs_workers.engines.batching import BatchEngine
from ccs_workers.engines.course import Ask
from ccs_workers.engines.footprint import KEPT_BYTES, footprint_of, give_back, map_large_blocks
from ccs_workers.engines.loading import quiet_transformers
from ccs_workers.engines.media import (
    RATE_HZ,
    AudioReader,
    LevelMeter,
    has_sound,
    plan_windows,
    resample,
    size_of_sound,
)
from ccs_workers.engines.protocol import EngineInfo, Sized
from ccs_workers.engines.whisper.joining import continuation
from ccs_workers.engines.whisper.model import LONGEST_WINDOW_S, Transcript, WhisperModel
from ccs_workers.engines.whisper.options import WhisperOptions

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pydantic import JsonValue

    from ccs_workers.engines.course import Course, Piece, Steps
    from ccs_workers.engines.protocol import Emit, EngineJob
    from ccs_workers.models.spec import ModelSpec

__all__ = ["WhisperEngine"]

#: Sound measured before other jobs get their turn.
_SCAN_S = 60
#: The warm-up's answers.
_WARM_TOKENS = 4
#: Of what the warm-up's steps took on top, this part is counted on to be there for jobs' steps.
_COVERED = 0.75
#: The shortest window of many: it is cut at the quietest spot of the last 8 of 30 s.
_SHORTEST_WINDOW_S = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    #: Counted from 1.
    number: int
    #: In samples of the file's own rate.
    start: int
    end: int
    silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    rate_hz: int
    windows: tuple[_Window, ...]

    def place(self, window: _Window) -> dict[str, JsonValue]:
        """What a window's progress says of where it is; a continued job must find the same windows."""
        return {
            "window": window.number,
            "windows": len(self.windows),
            "start_s": round(window.start / self.rate_hz, 3),
            "end_s": round(window.end / self.rate_hz, 3),
        }


class WhisperEngine(BatchEngine):
    """Turns speech into text: a ``Delta`` and a ``Progress`` per window of at most 30 s, cut at pauses.

    A job's prompt and sampling are ignored: decoding is greedy and to the end of each window. The file is
    read twice, block by block: first to measure how loud it is where, then window by window; so memory does
    not grow with its length. Windows without sound are skipped (``no_speech`` in their ``Progress``).
    A ``Progress`` also holds ``start_s`` and ``end_s``, the window's ``tokens``, and ``text_end``.
    Options: see ``WhisperOptions``. ``Done.data`` holds ``audio_s``, ``windows`` and ``no_speech``.
    """

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        super().__init__(spec, emit)
        self._options = WhisperOptions.of(spec)
        #: Whether jobs hold memory of the model's device between their steps, and what of it steps have; by loading.
        self._on_host = False
        self._covered_bytes = 0

    def load(self) -> EngineInfo:
        """Load the model and start the engine's thread."""
        began = time.monotonic()
        quiet_transformers()
        map_large_blocks()
        torch.set_num_threads(self._options.torch_threads)
        self._model = WhisperModel(self._spec, self._options.language)
        self._on_host = self._model.device.type == "cpu"
        fixed_bytes = self._warm_up()
        self._begin()
        return EngineInfo(
            alias=self._spec.alias,
            modality=self._spec.modality.value,
            device=str(self._model.device),
            dtype=str(self._model.dtype).removeprefix("torch."),
            weights_bytes=self._model.weights_bytes,
            load_s=time.monotonic() - began,
            takes_prompt=False,
            fixed_bytes=fixed_bytes,
            # Before its headers are read a sound counts as a long one that isn't copied: most are.
            need=(float(self._windows_bytes(None)), 0.0, 0.0, 0.0, 1.25) if self._on_host else (0.0,) * 5,
        )

    def _warm_up(self) -> int:
        """Listen to a full batch of silence; return the peak of the process's memory, as it is with long answers."""
        give_back()
        batch = self._options.max_batch
        footprint = footprint_of(str(self._model.device))
        rest_bytes = footprint.use().used_bytes
        with footprint.lap() as lap:
            silence = self._model.features(np.zeros(LONGEST_WINDOW_S * RATE_HZ, np.float32))
            self._model.transcribe([silence] * batch, lambda: [False] * batch, most_tokens=_WARM_TOKENS)
        peak_bytes = lap.peak_bytes + self._model.answer_bytes(batch)
        # One thread takes all steps, so what they have in common is that one of them runs at a time.
        self._covered_bytes = round(_COVERED * max(0, peak_bytes - rest_bytes))
        give_back()
        # Windows and layers of one window are blocks below the size from which they are mapped.
        return peak_bytes + (KEPT_BYTES if self._on_host else 0)

    def _check(self, job: EngineJob) -> Sized:
        if len(job.audio) != 1:
            raise InvalidInputError(f"an audio job has exactly one sound, not {len(job.audio)}")
        size = size_of_sound(job.audio[0], self._options.limits)
        if not self._on_host:
            # A GPU holds none of it beyond a step; those are all of one size.
            return Sized(need_bytes=0)
        excess_bytes = max(0, size.step_bytes - self._covered_bytes)
        held_bytes = size.held_bytes + self._windows_bytes(size.duration_s)
        return Sized(need_bytes=held_bytes + excess_bytes, step_bytes=excess_bytes)

    def _windows_bytes(self, duration_s: float | None) -> int:
        """Bytes of a sound's windows that wait for a batch; None: of a long one."""
        batch = self._options.max_batch
        count = batch if duration_s is None else min(batch, 1 + int(duration_s / _SHORTEST_WINDOW_S))
        return count * self._model.features_bytes

    def _largest_batch(self, kind: str) -> int:
        return self._options.max_batch

    def _run(self, kind: str, pieces: Sequence[Piece]) -> Sequence[Transcript]:
        return self._model.transcribe(
            [piece.payload for piece in pieces],
            cancelled=lambda: [piece.course.cancelled for piece in pieces],
        )

    def _restore(self, course: Course) -> None:
        done = course.earlier_progress
        course.usage = Usage.model_validate(
            {"audio_s": done[-1]["end_s"], "completion_tokens": sum(_tokens(entry) for entry in done)}
        )
        if not all(isinstance(entry["no_speech"], bool) for entry in done):
            raise TypeError

    def _steps(self, course: Course) -> Steps:
        plan = yield from self._plan(course)
        listener = _Listener(course, plan)
        waiting: list[tuple[_Window, torch.Tensor]] = []
        with AudioReader(course.job.audio[0], self._options.limits) as reader:
            for window in plan.windows[len(course.earlier_progress) :]:
                if window.silent:
                    yield from self._listen(listener, waiting)
                    listener.pass_by(window)
                    continue
                reader.skip(window.start - reader.position)
                samples = resample(reader.read(window.end - window.start), plan.rate_hz)
                waiting.append((window, self._model.features(samples[: LONGEST_WINDOW_S * RATE_HZ])))
                if len(waiting) >= self._share(listener):
                    yield from self._listen(listener, waiting)
            yield from self._listen(listener, waiting)

    def _plan(self, course: Course) -> Generator[None, Any, _Plan]:
        """Read the whole sound once: that finds any damage, its pauses and its silences."""
        with AudioReader(course.job.audio[0], self._options.limits) as reader:
            meter = LevelMeter(reader.rate_hz)
            piece = reader.rate_hz * _SCAN_S
            while len(samples := reader.read(piece)) == piece:
                meter.add(samples)
                yield None
            meter.add(samples)
            reader.check_end()
            levels, total, rate_hz = meter.finish(), reader.position, reader.rate_hz
        spans = plan_windows(levels, LONGEST_WINDOW_S * rate_hz // meter.frame_samples)
        windows = tuple(
            _Window(
                number=number,
                start=first * meter.frame_samples,
                end=min(total, last * meter.frame_samples),
                silent=not has_sound(levels[first:last], self._options.silence_dbfs),
            )
            for number, (first, last) in enumerate(spans, start=1)
        )
        plan, done = _Plan(rate_hz=rate_hz, windows=windows), course.earlier_progress
        _check_same(plan, done)
        course.data.update(
            audio_s=round(total / rate_hz, 3),
            windows=len(windows),
            # Of windows that are done, what was told counts: this worker's gate may be set otherwise.
            no_speech=all(entry["no_speech"] for entry in done)
            and all(window.silent for window in windows[len(done) :]),
        )
        return plan

    def _share(self, listener: _Listener) -> int:
        """How many windows of a job run together: one at first, then as many as others leave room for."""
        if not listener.heard_windows:
            return 1
        return max(1, self._options.max_batch // self._live_count())

    def _listen(self, listener: _Listener, waiting: list[tuple[_Window, torch.Tensor]]) -> Steps:
        if not waiting:
            return
        transcripts = yield Ask(kind="window", payloads=tuple(features for _, features in waiting))
        for (window, _), transcript in zip(waiting, transcripts, strict=True):
            listener.hear(window, transcript)
        waiting.clear()


class _Listener:
    """Tells a job what was heard, window by window."""

    def __init__(self, course: Course, plan: _Plan) -> None:
        self._course = course
        self._plan = plan
        self._last_character = course.earlier_text[: course.text_end][-1:]
        self.heard_windows = 0

    def hear(self, window: _Window, transcript: Transcript) -> None:
        """Emit a window's text and that it is done."""
        self.heard_windows += 1
        text = continuation(self._last_character, transcript.text)
        if text:
            self._last_character = text[-1]
            self._course.write(text)
        self._tell(window, transcript.tokens)

    def pass_by(self, window: _Window) -> None:
        """Emit that a silent window is done."""
        self._tell(window, 0)

    def _tell(self, window: _Window, tokens: int) -> None:
        place, usage = self._plan.place(window), self._course.usage
        self._course.usage = usage.model_copy(
            update={"audio_s": place["end_s"], "completion_tokens": usage.completion_tokens + tokens}
        )
        self._course.end_part({**place, "no_speech": window.silent, "tokens": tokens})


def _tokens(entry: Mapping[str, JsonValue]) -> int:
    tokens = entry["tokens"]
    if not isinstance(tokens, int) or tokens < 0:
        raise TypeError
    return tokens


def _check_same(plan: _Plan, done: Sequence[Mapping[str, JsonValue]]) -> None:
    """Raise ``EngineError`` unless the windows that are done are the plan's first."""
    first = [plan.place(window).items() for window in plan.windows[: len(done)]]
    if len(first) < len(done) or any(
        not place <= told.items() for place, told in zip(first, done, strict=True)
    ):
        raise EngineError(
            "the job can't be continued: the sound was cut into other windows before (another build, or other options)"
        )
