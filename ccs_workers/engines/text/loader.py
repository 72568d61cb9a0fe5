"""Loads a text model and its tokenizer from a local folder, and refuses what would answer with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ccs_workers.models.spec import ModelSpec


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


def load_model(spec: ModelSpec) -> LoadedModel:
    """Load and check a model; touches neither the network nor any code that lies beside the weights.

    Raises:
        ConfigurationError: the folder isn't a whole causal language model, or its weights are unusable.
    """
    device = pick_device(spec)
    quiet_transformers()
    tokenizer = load_part(AutoTokenizer.from_pretrained, spec)
    # The one attention implementation that the batching manager runs on every device without further libraries.
    model = load_pretrained(AutoModelForCausalLM, spec, device, attn_implementation="sdpa")
    _try_once(spec, model)
    config = model.config.get_text_config()
    ends = [model.generation_config.eos_token_id, tokenizer.eos_token_id]
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        weights_bytes=weights_bytes(model),
        context_tokens=getattr(config, "max_position_embeddings", None),
        end_ids=frozenset(number for end in ends for number in _as_list(end)),
    )


def _try_once(spec: ModelSpec, model: Any) -> None:
    """Refuse a model that answers its first token with what isn't a number."""
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        scores = model(input_ids=token, use_cache=False).logits
    if not torch.isfinite(scores).all():
        raise ConfigurationError(f"model {spec.alias!r}: its scores for a first token aren't finite")


def _as_list(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
