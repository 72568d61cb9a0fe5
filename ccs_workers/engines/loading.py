"""Loads models the same careful way for every engine: local safetensors, one at a time, and checked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_workers.models.spec import ModelSpec

__all__ = [
    "check_parameters",
    "load_part",
    "load_pretrained",
    "pick_device",
    "quiet_transformers",
    "weights_bytes",
]

#: transformers patches its own classes while it loads: two loads at once leave weights untied for good.
_LOADING: Final = threading.Lock()
#: What a wrong folder, a wrong file or a missing library raises in transformers.
_LOAD_ERRORS: Final = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError)


def quiet_transformers() -> None:
    """Keep progress bars and advice for users of transformers out of the worker's log."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def pick_device(spec: ModelSpec) -> torch.device:
    """Return the device of a spec; ``auto`` is the first CUDA device where there is one, else the CPU."""
    if spec.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(spec.device)
    except RuntimeError:
        raise ConfigurationError(f"model {spec.alias!r}: unknown device {spec.device!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"model {spec.alias!r}: no CUDA device here; write device = 'auto' or 'cpu'")
    return device


def load_pretrained(
    loader: Any, spec: ModelSpec, device: torch.device, *, subfolder: str = "", **settings: Any
) -> Any:
    """Load a model through ``loader`` (an ``AutoModel…`` or model class), ready to run on ``device``.

    ``settings`` go to its ``from_pretrained``.

    Raises:
        ConfigurationError: the files are missing or broken, or the weights are incomplete or not numbers.
    """
    dtype = "auto" if spec.dtype == "auto" else getattr(torch, spec.dtype)
    model, report = load_part(
        loader.from_pretrained,
        spec,
        subfolder,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        **settings,
    )
    # transformers fills what is missing with random numbers and goes on.
    if absent := sorted([*report["missing_keys"], *map(str, report["mismatched_keys"])]):
        raise ConfigurationError(
            f"model {spec.alias!r}: {spec.source} lacks {len(absent)} of its weights, the first {absent[0]}; "
            "prepare or fetch it again"
        )
    check_parameters(model, spec.alias)
    return model.eval().requires_grad_(requires_grad=False).to(device)


def load_part(load: Callable[..., Any], spec: ModelSpec, subfolder: str = "", **settings: Any) -> Any:
    """Call a ``from_pretrained`` for the spec's folder or hub id, offline, and translate its errors."""
    if subfolder:
        settings["subfolder"] = subfolder
    if spec.revision:
        settings["revision"] = spec.revision
    try:
        with _LOADING:
            return load(spec.source, local_files_only=True, trust_remote_code=False, **settings)
    except _LOAD_ERRORS as error:
        place = f"{spec.source}/{subfolder}" if subfolder else spec.source
        raise ConfigurationError(f"model {spec.alias!r}: {place} can't be loaded: {error}") from error


def check_parameters(model: Any, alias: str) -> None:
    """Refuse a model with weights that were not loaded or that aren't finite numbers.

    Raises:
        ConfigurationError: names the first such weight.
    """
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if weight.is_meta:
            raise ConfigurationError(f"model {alias!r}: weight {name} was not loaded")
        # Buffers may hold infinities by design; weights may not.
        if isinstance(weight, torch.nn.Parameter) and not torch.isfinite(weight).all():
            raise ConfigurationError(f"model {alias!r}: weight {name} holds values that aren't finite")


def weights_bytes(*models: Any) -> int:
    """Bytes of all weights of these models; tied ones count once."""
    storages = {
        weight.untyped_storage().data_ptr(): weight.untyped_storage()
        for model in models
        for weight in [*model.parameters(), *model.buffers()]
    }
    return sum(storage.nbytes() for storage in storages.values())
