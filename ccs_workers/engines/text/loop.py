"""One life of transformers' continuous batching manager: requests in, the tokens of each step out.

The manager runs in a thread of its own and waits on an event when it has nothing to do. We take three of its
seams: its output router (outputs come to us within its thread, a step at a time), its list of logits
processors (each request draws its own tokens), and its configuration (sized by us, not by what memory happens
to be free).
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import RequestStatus

from ccs_workers.engines.text.largest_step import take_largest_step
from ccs_workers.engines.text.room import KvRoom
from ccs_workers.engines.text.sampler import BatchSampler, Draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccs_workers.engines.text.options import TextOptions
    from ccs_workers.engines.text.request import Request

#: Tokens of one page of keys and values. Small, as a job holds whole pages; reading goes by tokens anyway.
_PAGE_TOKENS: Final = 32
#: How often to look whether the manager's thread still lives; its failures wake us at once.
_WATCH_S: Final = 1.0
_STOP_S: Final = 5.0
#: The manager logs exceptions with their text and token ids of prompts; both stay out of the log.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Progressed:
    """What one step gave one request: all tokens of this life so far, and whether it is done with it."""

    key: str
    tokens: Sequence[int]
    complete: bool


class Listener(Protocol):
    """Who is told what the loop does, within its thread."""

    def on_step(self, progress: Sequence[Progressed]) -> None:
        """One step of all requests in the batch. Must not raise."""

    def on_refused(self, key: str, error: Exception) -> None:
        """The manager would not take a request, and goes on."""


class DecodeLoop:
    """Built once and run once; after a crash it is dropped with its keys and values, and a new one built."""

    def __init__(self, model: Any, options: TextOptions, kv_tokens: int, listener: Listener) -> None:
        """Reserve room for ``kv_tokens``; raises ``MemoryError`` or torch's own where there isn't as much."""
        self._closing = False
        self._crashed = False
        self._wake = threading.Event()
        # Drawing is ours (see BatchSampler), and so is every setting: none is shared between requests.
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=configuration(options, kv_tokens, model.device.type),
        )
        self._manager.logit_processor = BatchSampler()
        self._manager.output_router = _Router(self, listener)
        with torch.inference_mode():
            self._manager.warmup()
        #: Room for keys and values.
        self.room = KvRoom.of(self._manager.batch_processor.cache)

    def warm_up(self, context_tokens: int) -> None:
        """Take the largest step that requests of up to so many tokens can come to; before ``run``.

        Raises ``MemoryError`` or torch's own where the device hasn't the memory for it.
        """
        with torch.inference_mode():
            take_largest_step(self._manager.batch_processor, self._manager.model, self.room, context_tokens)

    def run(self) -> Exception | None:
        """Run until it is closed or crashes; return what crashed it. To be called from a daemon thread."""
        with torch.inference_mode():
            self._manager.start()
        while self._manager.is_running():
            self._wake.wait(_WATCH_S)
            if self._closing:
                self._manager.stop(timeout=_STOP_S, hard_stop=True)
                return None
            if self._crashed:
                self._manager.join(time.perf_counter())
        error: Exception | None = self._manager.background_thread_status.fatal_error
        # Its pool of keys and values must go before the next loop makes one.
        self._manager.batch_processor = None
        return error

    def add(self, request: Request, end_ids: Iterable[int]) -> None:
        """Hand over a request; it joins the next step. Never blocks."""
        ids = request.resumed_ids()
        self._manager.add_request(
            ids,
            request_id=request.job.key,
            max_new_tokens=request.most_tokens - len(ids),
            streaming=True,
            eos_token_id=list(end_ids),
            draw=Draw.of(request.job.sampling, request.job.seed),
        )

    def cancel(self, key: str) -> None:
        """Drop a request before the next step, and its keys and values."""
        self._manager.cancel_request(key)

    def close(self) -> None:
        """Make ``run`` return."""
        self._closing = True
        self._wake.set()

    def fails(self) -> bool:
        """Whether a request's failure is the loop's crash rather than its own; a crash wakes ``run``."""
        if self._manager.background_thread_status.can_accept_new_requests() is None:
            return False
        self._crashed = True
        self._wake.set()
        return True


class _Router(OutputRouter):  # type: ignore[misc]  # untyped base
    """Passes a step's outputs on at once, where the manager's own puts them into a queue."""

    def __init__(self, loop: DecodeLoop, listener: Listener) -> None:
        super().__init__()
        self._loop = loop
        self._listener = listener

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        self._listener.on_step(
            [
                Progressed(one.request_id, one.generated_tokens, one.status == RequestStatus.FINISHED)
                for one in outputs
            ]
        )

    def fail_and_deliver(self, state: Any, error: Exception) -> None:
        if not self._loop.fails():
            self._listener.on_refused(state.request_id, error)


def configuration(options: TextOptions, kv_tokens: int, device_type: str) -> ContinuousBatchingConfig:
    """The manager's configuration for a model with these options on this kind of device."""
    return ContinuousBatchingConfig(
        page_size=_PAGE_TOKENS,
        num_blocks=ceil(kv_tokens / _PAGE_TOKENS),
        max_batch_tokens=options.step_tokens_on(device_type),
        max_requests_per_batch=options.max_batch,
        # Off, so that what a job computes doesn't depend on what others computed before.
        allow_block_sharing=False,
        # We admit a job only with room for its whole length; there is nothing to keep in reserve.
        safety_margin=0.0,
        # Our sampler works on the host between steps.
        use_async_batching=False,
        use_cuda_graph=False,
        # Looks for kernels on the network.
        auto_switch_to_flash=False,
    )
