"""The text engine: admits jobs to the decode loop, streams their text, and outlives what crashes the loop.

A job enters the loop when there is a place in the batch and room for the keys and values of its whole length,
so nothing is ever evicted; until then it waits here, in order.

When a forward pass raises, the loop is gone with everything in it. Its jobs go on from their tokens so far in
a new loop, joining one after the other, so that the one which crashes it again is known, tried alone, and
fails alone. When crashes follow each other without a token between them, or the device no longer works, the
process ends with ``EXIT_BROKEN``: the worker replaces it, and its jobs go on elsewhere.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

import torch

from ccs_broker.errors import (
    CcsError,
    ConfigurationError,
    ContextTooLongError,
    EngineLostError,
    InternalError,
)
from ccs_workers.engines.faults import EXIT_BROKEN, as_engine_error, free_cache, is_out_of_memory, release
from ccs_workers.engines.footprint import footprint_of, give_back
from ccs_workers.engines.protocol import Delta, Done, EngineInfo, Failed, Sized
from ccs_workers.engines.text.loader import LoadedModel, load_model
from ccs_workers.engines.text.loop import DecodeLoop
from ccs_workers.engines.text.options import TextOptions
from ccs_workers.engines.text.request import Request, Trial
from ccs_workers.engines.text.roster import Roster
from ccs_workers.engines.text.stop_strings import StopFilter
from ccs_workers.engines.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import JsonValue

    from ccs_workers.engines.protocol import Emit, EngineJob, EngineOutput, FinishReason, Resume
    from ccs_workers.engines.text.loop import Progressed
    from ccs_workers.models.spec import ModelSpec

logger = logging.getLogger(__name__)

#: Crashes without a token between them, after which the fault isn't a job's.
_MOST_BARREN_CRASHES: Final = 4
_KV_TOKENS_PER_JOB: Final = 512
_LARGEST_DEFAULT_CONTEXT: Final = 8192
#: For the estimate of a job's memory before its tokens are known; English has 0.25, other scripts more.
_TOKENS_PER_CHAR: Final = 0.5


class TextEngine:
    """Decodes any number of jobs at once; see ``ccs_workers.engines.protocol.Engine``."""

    def __init__(self, spec: ModelSpec, emit: Emit, *, on_broken: Callable[[int], object] = os._exit) -> None:
        """``on_broken`` is called with ``EXIT_BROKEN`` when no further job could succeed here."""
        self._spec = spec
        self._emit = emit
        self._on_broken = on_broken
        self._options = TextOptions.of(spec)
        # Held while a step's outputs go out; reentrant, as emit may cancel.
        self._lock = threading.RLock()
        self._roster = Roster(self._options.max_batch)
        self._loop: DecodeLoop | None = None
        self._supervisor: threading.Thread | None = None
        self._closed = False
        self._barren_crashes = 0

    def load(self) -> EngineInfo:
        """Load model and tokenizer, reserve the keys' and values' room and start the loop."""
        began = time.monotonic()
        torch.set_num_threads(self._options.torch_threads)
        self._loaded = load_model(self._spec, packed=self._options.packed_weights)
        self._vocabulary = Vocabulary(self._loaded.tokenizer, self._options, self._spec.alias)
        self._context_tokens, self._kv_tokens = _sizes(self._spec, self._options, self._loaded)
        give_back()
        try:
            with footprint_of(str(self._loaded.device)).lap() as lap:
                loop = self._loop = self._new_loop()
                loop.warm_up(self._context_tokens)
        except (MemoryError, RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"model {self._spec.alias!r}: can't batch with room for {self._kv_tokens} tokens "
                f"(options 'kv_tokens', 'max_context', 'max_batch'): {error}"
            ) from error
        self._room = loop.room
        self._context_tokens = self._room.longest(self._context_tokens, self._room.units)
        self._supervisor = threading.Thread(target=self._supervise, name="ccs-text", daemon=True)
        self._supervisor.start()
        return EngineInfo(
            alias=self._spec.alias,
            modality=self._spec.modality.value,
            device=str(self._loaded.device),
            dtype=self._loaded.dtype,
            weights_bytes=self._loaded.weights_bytes,
            load_s=time.monotonic() - began,
            context_tokens=self._context_tokens,
            fixed_bytes=lap.peak_bytes,
            pool_bytes=self._room.total_bytes,
            need=self._room.estimate(len(self._vocabulary.encode(".")), _TOKENS_PER_CHAR),
        )

    def start(self, job: EngineJob) -> None:
        """Take a job; raises before the model is touched for it if it can't run."""
        prompt_ids = self._vocabulary.encode(job.prompt)
        request = Request(
            job=job,
            prompt_ids=prompt_ids,
            detokenizer=self._vocabulary.detokenizer(),
            stop=StopFilter(job.sampling.stop),
        )
        if request.most_tokens > self._context_tokens:
            raise ContextTooLongError(
                f"{len(prompt_ids)} prompt tokens and {job.sampling.max_new_tokens} new ones exceed the "
                f"context of {self._context_tokens} tokens"
            )
        with self._lock:
            if self._closed:
                raise EngineLostError("the engine has been closed")
            if self._roster.find(job.key) is not None:
                raise InternalError("a job with this key is running already")
            if job.resume is not None and self._ended_before(request, job.resume):
                return
            self._emit(job.key, Sized(need_bytes=self._room.bytes_for(request.most_tokens)))
            self._roster.append(request)
            self._admit()

    def _ended_before(self, request: Request, resume: Resume) -> bool:
        """Restore a job; end it if its earlier attempts had only failed to say so."""
        owed, reason = request.restore(resume, self._loaded.end_ids)
        if reason is None:
            return False
        if owed:
            self._emit(request.job.key, Delta(text=owed))
        self._emit(request.job.key, Done(finish_reason=reason, usage=request.usage, data=self._data()))
        return True

    def cancel(self, key: str) -> None:
        """End a job now; what the step in progress still gives for it is dropped."""
        with self._lock:
            request = self._roster.find(key)
            if request is not None:
                self._finish(request, "cancelled")
                self._admit()

    def grant(self, key: str, memory_bytes: int) -> None:
        """Change nothing: a job starts when the pool of keys and values, which was there first, has room for it."""

    def close(self) -> None:
        """Stop the loop and forget all jobs."""
        with self._lock:
            self._closed = True
            self._roster.clear()
            loop = self._loop
        if loop is not None:
            loop.close()
        if self._supervisor is not None:
            self._supervisor.join()

    def on_step(self, progress: Sequence[Progressed]) -> None:
        """Pass on what a step gave (``Listener``)."""
        with self._lock:
            self._barren_crashes = 0
            for step in progress:
                request = self._roster.active(step.key)
                # None: cancelled, or ended by a stop string, while the step ran.
                if request is not None:
                    self._advance(request, step)
            self._admit()

    def on_refused(self, key: str, error: Exception) -> None:
        """Fail a request that the manager would not take (``Listener``)."""
        logger.error("the batching manager refused a request: %s", _where(error))
        with self._lock:
            request = self._roster.active(key)
            if request is not None:
                self._fail(request, InternalError("the batching manager refused the job"))

    def _advance(self, request: Request, step: Progressed) -> None:
        request.trial = Trial.NONE
        try:
            delta, reason = request.take(step.tokens, self._loaded.end_ids, complete=step.complete)
        except Exception as error:  # noqa: BLE001 - loop edge: what one job's text raises ends that job alone
            logger.error("detokenizing failed: %s", _where(error))
            self._fail(request, InternalError(f"turning tokens into text raised {type(error).__name__}"))
            return
        if delta is not None:
            self._emit(request.job.key, delta)
        # Whoever takes the delta may have cancelled the job.
        if reason is not None and self._roster.active(request.job.key) is request:
            self._finish(request, reason, in_loop=not step.complete)

    def _admit(self) -> None:
        if self._loop is not None:
            for request in self._roster.admit(self._room.units, self._room.units_for):
                self._loop.add(request, self._loaded.end_ids)

    def _finish(self, request: Request, reason: FinishReason, *, in_loop: bool = True) -> None:
        last = Done(finish_reason=reason, usage=request.usage, data=self._data())
        self._drop(request, last, in_loop=in_loop)

    def _data(self) -> Mapping[str, JsonValue]:
        return {} if self._loaded.dtype == "float32" else {"reproducible": False}

    def _fail(self, request: Request, error: CcsError) -> None:
        self._drop(request, Failed(code=error.code, message=error.message))

    def _drop(self, request: Request, last: EngineOutput, *, in_loop: bool = True) -> None:
        """Forget a job and send its last output; ``in_loop`` is false where the loop is done with it."""
        was_active = self._roster.remove(request)
        if was_active and in_loop and self._loop is not None:
            self._loop.cancel(request.job.key)
        self._emit(request.job.key, last)

    def _new_loop(self) -> DecodeLoop:
        return DecodeLoop(self._loaded.model, self._options, self._kv_tokens, self)

    def _supervise(self) -> None:
        """Run one loop after the other until the engine is closed or broken."""
        while (loop := self._loop) is not None:
            error = loop.run()
            with self._lock:
                self._loop = None
                if self._closed:
                    return
                self._blame(error)
            lacked_memory = is_out_of_memory(error)
            release(error)
            del loop, error
            if lacked_memory:
                # What the loop held must be gone before the next one asks for as much.
                free_cache()
            if self._barren_crashes >= _MOST_BARREN_CRASHES or not self._revive():
                logger.critical("the text engine can't go on; ending the process")
                self._closed = True
                self._on_broken(EXIT_BROKEN)

    def _blame(self, error: Exception | None) -> None:
        logger.error("the decode loop crashed with %d jobs: %s", len(self._roster), _where(error))
        # What is too large for the device is a job's own fault, however often.
        self._barren_crashes += not is_out_of_memory(error)
        for request in self._roster.crashed():
            need_bytes = self._room.bytes_for(request.most_tokens)
            self._fail(request, as_engine_error(error, need_bytes=need_bytes))

    def _revive(self) -> bool:
        """Build a new loop; return whether the device still works."""
        try:
            torch.zeros(1, device=self._loaded.device).add_(1).item()
            loop = self._new_loop()
        except Exception as error:  # noqa: BLE001 - loop edge: a dead device or no memory left
            logger.error("no new decode loop: %s", _where(error))
            return False
        with self._lock:
            self._loop = None if self._closed else loop
            self._admit()
        return True


def _sizes(spec: ModelSpec, options: TextOptions, loaded: LoadedModel) -> tuple[int, int]:
    """Return the longest context and the room for keys and values, both in tokens."""
    known = [size for size in (loaded.context_tokens, options.max_context) if size is not None]
    if not known:
        raise ConfigurationError(
            f"model {spec.alias!r}: its configuration names no context length; give option 'max_context'"
        )
    context = min(known)
    kv_tokens = options.kv_tokens or max(
        options.max_batch * _KV_TOKENS_PER_JOB, min(context, _LARGEST_DEFAULT_CONTEXT)
    )
    return min(context, kv_tokens), kv_tokens


def _where(error: Exception | None) -> str:
    """Where an error arose, without its text, which could hold a piece of a prompt."""
    if error is None:
        return "its thread ended"
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
