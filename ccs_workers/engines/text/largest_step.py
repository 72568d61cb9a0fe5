"""The largest step that a decode loop can come to, taken once before any job: what memory it needs is known then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.generation.continuous_batching.requests import RequestStatus, create_warmup_future_states

if TYPE_CHECKING:
    from ccs_workers.engines.text.room import KvRoom

__all__ = ["take_largest_step"]


def take_largest_step(processor: Any, model: Any, room: KvRoom, context_tokens: int) -> None:
    """Run one forward pass with a full batch, as many tokens as a step may have, and all room read.

    The first such pass also touches all of the room, of which the system may have given nothing but addresses.
    ``processor`` is the manager's batch processor; it is left as it was.
    """
    cache, inputs = processor.cache, processor.inputs_and_outputs
    cache.cache_tensor.zero_()
    requests = max(1, min(inputs.max_requests_per_batch, room.units // room.units_for(1)))
    longest = room.longest(context_tokens, room.units // requests)
    new = max(1, min(cache.max_batch_tokens // requests, longest))
    past = max(0, longest - new)
    states = create_warmup_future_states(requests, RequestStatus.DECODING, new, past, cache)
    for future in states:
        future.state.logit_processor_kwargs["draw"] = None
    try:
        inputs.prepare_batch_tensors(
            states,
            processor.logit_processor,
            use_decode_fast_path=False,
            num_q_tokens=new * len(states),
            max_kv_read=past * len(states),
            use_padding=False,
        )
        processor.model_runner.compute_batch(model, inputs.get_model_kwargs(use_padding=False))
        inputs.retrieve_device_outputs()
    finally:
        cache.reset()
        inputs.reset()
