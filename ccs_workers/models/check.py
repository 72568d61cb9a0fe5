"""Checks on declared models: is the folder whole, do its weights parse, are they numbers, does it answer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccs_workers.models.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccs_workers.models.spec import ModelSpec

__all__ = ["CheckReport", "Probe", "ProbeResult", "check", "parameter_faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How loading a model and running one small job on it went."""

    ok: bool
    detail: str


#: Loads the model and runs a job on it; given by whoever owns the engines.
Probe = Callable[["ModelSpec"], ProbeResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The result of checking one model; without ``faults`` it can be served."""

    alias: str
    faults: tuple[str, ...]
    #: Where the weights lie; ``None`` for a weightless engine or where they weren't found.
    folder: Path | None
    size_bytes: int
    parameters: int
    seconds: float
    probe: ProbeResult | None = None

    @property
    def ok(self) -> bool:
        """Tell whether nothing was found wrong."""
        return not self.faults


def check(spec: ModelSpec, *, deep: bool = False, probe: Probe | None = None) -> CheckReport:
    """Check the folder of a model; faults are collected, not raised.

    ``deep`` also compares hashes with the manifest, reads every weight and calls ``probe`` where one is
    given (only if nothing was wrong before). It never reaches the network: a hub model must be cached.
    """
    started = time.perf_counter()
    folder, faults = _locate(spec)
    parameters = 0
    if folder is not None:
        faults += _folder_faults(folder, deep=deep)
        parameters, weight_faults = _read_weights(folder, deep=deep)
        faults += weight_faults
    answer = probe(spec) if deep and probe is not None and not faults else None
    if answer is not None and not answer.ok:
        faults.append(f"one small job on it went wrong: {answer.detail}")
    return CheckReport(
        alias=spec.alias,
        faults=tuple(faults),
        folder=folder,
        size_bytes=_size_bytes(folder),
        parameters=parameters,
        seconds=time.perf_counter() - started,
        probe=answer,
    )


def parameter_faults(tensors: Iterable[tuple[str, Any]]) -> list[str]:
    """Name the torch tensors that hold no memory (``meta``) or a value that is no finite number.

    Engines call it with a model's named parameters and buffers after each load.
    """
    # Only deep checks need it, and listing models must stay quick.
    import torch

    faults = []
    for name, tensor in tensors:
        if tensor.is_meta:
            faults.append(f"{name} was never loaded (it lies on the meta device)")
        elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            faults.append(f"{name} holds values that are not finite")
    return faults


def _locate(spec: ModelSpec) -> tuple[Path | None, list[str]]:
    if spec.path is not None:
        if spec.path.is_dir():
            return spec.path, []
        return None, [f"there is no folder {spec.path}; 'ccs models prepare' makes those of the catalog"]
    if spec.hub is not None:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return Path(snapshot_download(spec.hub, revision=spec.revision, local_files_only=True)), []
        except (LocalEntryNotFoundError, ValueError):
            return None, [
                f"{spec.hub} isn't in the local hub cache; download it with 'hf download {spec.hub}'"
            ]
    return None, []


def _folder_faults(folder: Path, *, deep: bool) -> list[str]:
    faults = []
    if (manifest := Manifest.read(folder)) is not None:
        faults += manifest.faults(folder, deep=deep)
    if next(folder.rglob("config.json"), None) is None:
        faults.append("there is no config.json in the folder")
    for index in folder.rglob("*.safetensors.index.json"):
        faults += _missing_shards(index)
    return faults


def _missing_shards(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return [f"{index.name} can't be read as an index of weight files"]
    return [f"{name} is missing" for name in sorted(names) if not (index.parent / name).is_file()]


def _read_weights(folder: Path, *, deep: bool) -> tuple[int, list[str]]:
    """Return how many parameters the folder's safetensors files hold, and what is wrong with them."""
    from safetensors import SafetensorError, safe_open

    paths = sorted(folder.rglob("*.safetensors"))
    if not paths:
        return 0, ["there is no .safetensors file in the folder"]
    parameters, faults = 0, []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        try:
            with safe_open(path, framework="pt" if deep else "numpy") as weights:
                parameters += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
                if deep:
                    tensors = ((f"{name}: {key}", weights.get_tensor(key)) for key in weights.keys())  # noqa: SIM118
                    faults += parameter_faults(tensors)
        except (OSError, SafetensorError) as error:
            faults.append(f"{name} can't be read: {error}")
    return parameters, faults


def _size_bytes(folder: Path | None) -> int:
    if folder is None:
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
