"""Loads a text model and its tokenizer from a local folder, and refuses what would answer with noise."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ccs_broker.errors import ConfigurationError
from ccs_workers.engines.loading import (
    load_part,
    load_pretrained,
    pick_device,
    quiet_transformers,
    weights_bytes,
)
from ccs_workers.engines.text.packing import can_pack, pack

if TYPE_CHECKING:
    from ccs_workers.models.spec import ModelSpec

logger = logging.getLogger(__name__)

#: From a model that looks at its weights itself, and from a torch whose kernels have changed.
_UNPACKABLE: Final = (AttributeError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, and what it says of itself."""

    model: Any
    tokenizer: Any
    device: torch.device
    #: Such as ``float32``.
    dtype: str
    weights_bytes: int
    #: Tokens it has learnt to handle; None where its configuration doesn't say.
    context_tokens: int | None
    #: Tokens that end an answer.
    end_ids: frozenset[int]


def load_model(spec: ModelSpec, *, packed: bool = False) -> LoadedModel:
    """Load and check a model; touches neither the network nor any code that lies beside the weights.

    ``packed``: keep the weights in the fastest layout where the device has one.

    Raises:
        ConfigurationError: the folder isn't a whole causal language model, or its weights are unusable.
    """
    device = pick_device(spec)
    quiet_transformers()
    tokenizer = load_part(AutoTokenizer.from_pretrained, spec)
    model = _load_plain(spec, device)
    packed_bytes = 0
    if packed and can_pack(model):
        try:
            packed_bytes = _pack_faithfully(model)
        except _UNPACKABLE as error:
            logger.warning("the weights of model %r stay unpacked: %s", spec.alias, error)
            model = _load_plain(spec, device)
    ends = [model.generation_config.eos_token_id, tokenizer.eos_token_id]
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        weights_bytes=weights_bytes(model) + packed_bytes,
        context_tokens=getattr(model.config.get_text_config(), "max_position_embeddings", None),
        end_ids=frozenset(number for end in ends for number in _as_list(end)),
    )


def _load_plain(spec: ModelSpec, device: torch.device) -> Any:
    # The one attention implementation that the batching manager runs on every device without further libraries.
    model = load_pretrained(AutoModelForCausalLM, spec, device, attn_implementation="sdpa")
    if not torch.isfinite(_probe(model)).all():
        raise ConfigurationError(f"model {spec.alias!r}: its scores for a first token aren't finite")
    return model


def _probe(model: Any) -> torch.Tensor:
    tokens = torch.zeros((1, 4), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        scores: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return scores


def _pack_faithfully(model: Any) -> int:
    """Pack the weights and return their bytes; raises one of ``_UNPACKABLE`` if the model answers otherwise then."""
    expected = _probe(model)
    packed_bytes = pack(model)
    if not torch.allclose(_probe(model), expected, rtol=1e-3, atol=1e-3):
        raise RuntimeError("its scores change")
    # glibc would keep the plain weights' memory for later.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return packed_bytes


def _as_list(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
