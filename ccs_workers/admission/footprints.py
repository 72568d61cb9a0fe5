"""What an engine will hold: read from its model's files before it is first loaded, measured from then on."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from huggingface_hub import try_to_load_from_cache

from ccs_workers.admission.records import Footprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_workers.engines.protocol import EngineInfo
    from ccs_workers.models.spec import ModelSpec

__all__ = ["Footprints", "stated_footprint", "whole_number"]

#: Interpreter, torch, transformers and, on CUDA, the context: about what a process with a tiny model holds.
PROCESS_BYTES: Final = 600 * 2**20
#: While loading, weights may be there twice: as stored and as converted or packed.
_LOAD_FACTOR: Final = 2.0
#: What isn't known before: activations of a step, buffers.
_UNKNOWN_BYTES: Final = 200 * 2**20
_DEFAULT_KV_TOKENS: Final = 8192
_SIZES: Final = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_DTYPES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
#: A header of a safetensors file is JSON of some hundred bytes per tensor.
_MOST_HEADER_BYTES: Final = 100 * 2**20


class Footprints:
    """Estimates, and what was measured at the last load of each; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[str, Footprint] = {}

    def expected(self, spec: ModelSpec) -> Footprint:
        """What the engine of a model will hold at its peak, as far as that is known."""
        with self._lock:
            known = self._measured.get(spec.alias)
        return known or stated_footprint(spec)

    def measured(self, info: EngineInfo) -> Footprint:
        """Take over what a loaded engine tells."""
        found = Footprint(fixed_bytes=info.fixed_bytes, pool_bytes=info.pool_bytes)
        with self._lock:
            self._measured[info.alias] = found
        return found


def stated_footprint(spec: ModelSpec) -> Footprint:
    """What a model's files and options say of its engine's memory while it loads; never too little by intention."""
    if spec.engine == "simulated":
        return Footprint(fixed_bytes=whole_number(spec.options.get("weights_bytes")))
    folder = _folder(spec)
    weights_bytes = 0 if folder is None else sum(map(_tensor_bytes(spec), _headers(folder)))
    pool_bytes = 0 if folder is None else _kv_bytes(spec, folder)
    fixed = PROCESS_BYTES + _UNKNOWN_BYTES + math.ceil(_LOAD_FACTOR * weights_bytes) + pool_bytes
    return Footprint(fixed_bytes=fixed, pool_bytes=pool_bytes)


def _folder(spec: ModelSpec) -> Path | None:
    if spec.path is not None:
        return spec.path
    found = try_to_load_from_cache(str(spec.hub), "config.json", revision=spec.revision)
    return Path(found).parent if isinstance(found, str) else None


def _headers(folder: Path) -> Iterator[dict[str, Any]]:
    """Headers of all safetensors files of a folder, those of its parts too."""
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(size, _MOST_HEADER_BYTES)))
        except (OSError, ValueError):
            # Whoever loads it says what is wrong with it.
            continue
        if isinstance(header, dict):
            yield header


def _tensor_bytes(spec: ModelSpec) -> Any:
    """A function from a header to the bytes of its tensors as they will be loaded."""
    wanted = _DTYPES.get(spec.dtype)

    def summed(header: dict[str, Any]) -> int:
        total = 0
        for name, entry in header.items():
            if name != "__metadata__" and isinstance(entry, dict):
                stored = _SIZES.get(str(entry.get("dtype")), 4)
                total += math.prod(entry.get("shape") or [1]) * (wanted or stored)
        return total

    return summed


def _kv_bytes(spec: ModelSpec, folder: Path) -> int:
    """Keys and values of a text model's pool; 0 for other models and where its configuration doesn't tell."""
    if spec.engine != "text":
        return 0
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        head_size = int(config.get("head_dim") or config["hidden_size"] // heads)
        per_token = (
            2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * head_size
        )
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    tokens = whole_number(spec.options.get("kv_tokens")) or _DEFAULT_KV_TOKENS
    return per_token * _DTYPES.get(spec.dtype, 4) * tokens


def whole_number(value: object) -> int:
    """An option of a model file as a number; 0 where it isn't one, which its engine will say."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
