"""The Whisper engine: listens to a sound window by window and tells what was said after each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ccs_broker.errors import InvalidInputError
from ccs_workers.engines.batching import Ask, BatchEngine
from ccs_workers.engines.loading import quiet_transformers
from ccs_workers.engines.media import (
    RATE_HZ,
    AudioReader,
    LevelMeter,
    check_audio,
    has_sound,
    plan_windows,
    resample,
)
from ccs_workers.engines.protocol import Delta, EngineInfo, Progress
from ccs_workers.engines.whisper.joining import continuation
from ccs_workers.engines.whisper.model import LONGEST_WINDOW_S, Transcript, WhisperModel
from ccs_workers.engines.whisper.options import WhisperOptions

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ccs_workers.engines.batching import Course, Piece, Steps
    from ccs_workers.engines.protocol import Emit, EngineJob
    from ccs_workers.models.spec import ModelSpec

__all__ = ["WhisperEngine"]

#: Sound measured before other jobs get their turn.
_SCAN_S = 60


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


class WhisperEngine(BatchEngine):
    """Turns speech into text: a ``Delta`` and a ``Progress`` per window of at most 30 s, cut at pauses.

    A job's prompt and sampling are ignored: decoding is greedy and to the end of each window. The file is
    read twice, block by block: first to measure how loud it is where, then window by window; so memory does
    not grow with its length. Windows without sound are skipped (``no_speech`` in their ``Progress``).
    Options: see ``WhisperOptions``. ``Done.data`` holds ``audio_s``, ``windows`` and ``no_speech``.
    """

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        super().__init__(spec, emit)
        self._options = WhisperOptions.of(spec)

    def load(self) -> EngineInfo:
        """Load the model and start the engine's thread."""
        began = time.monotonic()
        quiet_transformers()
        torch.set_num_threads(self._options.torch_threads)
        self._model = WhisperModel(self._spec, self._options.language)
        self._begin()
        return EngineInfo(
            alias=self._spec.alias,
            modality=self._spec.modality.value,
            device=str(self._model.device),
            dtype=str(self._model.dtype).removeprefix("torch."),
            weights_bytes=self._model.weights_bytes,
            load_s=time.monotonic() - began,
        )

    def _check(self, job: EngineJob) -> None:
        if len(job.audio) != 1:
            raise InvalidInputError(f"an audio job has exactly one sound, not {len(job.audio)}")
        check_audio(job.audio[0], self._options.limits)

    def _largest_batch(self, kind: str) -> int:
        return self._options.max_batch

    def _run(self, kind: str, pieces: Sequence[Piece]) -> Sequence[Transcript]:
        return self._model.transcribe(
            [piece.payload for piece in pieces],
            cancelled=lambda: [piece.course.cancelled for piece in pieces],
        )

    def _steps(self, course: Course) -> Steps:
        plan = yield from self._plan(course)
        listener = _Listener(course, plan)
        waiting: list[tuple[_Window, torch.Tensor]] = []
        with AudioReader(course.job.audio[0], self._options.limits) as reader:
            for window in plan.windows:
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
        course.data.update(
            audio_s=round(total / rate_hz, 3),
            windows=len(windows),
            no_speech=all(window.silent for window in windows),
        )
        return _Plan(rate_hz=rate_hz, windows=windows)

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
        self._last_character = ""
        self.heard_windows = 0

    def hear(self, window: _Window, transcript: Transcript) -> None:
        """Emit a window's text and that it is done."""
        self.heard_windows += 1
        text = continuation(self._last_character, transcript.text)
        if text:
            self._last_character = text[-1]
            self._course.emit(Delta(text=text))
        self._tell(window, transcript.tokens)

    def pass_by(self, window: _Window) -> None:
        """Emit that a silent window is done."""
        self._tell(window, 0)

    def _tell(self, window: _Window, tokens: int) -> None:
        rate_hz = self._plan.rate_hz
        usage = self._course.usage
        self._course.usage = usage.model_copy(
            update={
                "audio_s": round(window.end / rate_hz, 3),
                "completion_tokens": usage.completion_tokens + tokens,
            }
        )
        self._course.emit(
            Progress(
                data={
                    "window": window.number,
                    "windows": len(self._plan.windows),
                    "start_s": round(window.start / rate_hz, 3),
                    "end_s": round(window.end / rate_hz, 3),
                    "no_speech": window.silent,
                }
            )
        )
