"""Writes converted weights as safetensors, after comparing their names and shapes with the model's class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def save_weights(
    state: Mapping[str, torch.Tensor],
    model_class: type[Any],
    config: Any,
    folder: Path,
    *,
    tied: Iterable[str] = (),
) -> None:
    """Write ``config.json`` and ``model.safetensors`` for ``model_class(config)``.

    ``tied`` names parameters that share another one's memory and so aren't stored. The model is built
    without memory, only to compare: a missing, foreign or misshapen tensor raises ``ValueError``.
    """
    with torch.device("meta"):
        wanted = {name: tuple(value.shape) for name, value in model_class(config).state_dict().items()}
    for name in tied:
        del wanted[name]
    given = {name: tuple(value.shape) for name, value in state.items()}
    if wanted != given:
        differing = sorted(
            name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)
        )
        raise ValueError(f"weights don't fit {model_class.__name__}: {', '.join(differing[:5])}")
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    # transformers refuses files that don't say which framework wrote them.
    packed = {name: value.contiguous() for name, value in state.items()}
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
