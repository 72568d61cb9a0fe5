"""The model file beside the prepared folders: written once, then only added to, so that edits stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ccs_workers.models.modelfile import ModelFile, load_model_file, parse_model_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccs_workers.models.catalog import CatalogModel

MODEL_FILE_NAME: Final = "models.toml"
_HEADER = """\
# Written by `ccs models prepare`, which adds models that are missing and changes nothing else.
# Point CCS_MODELS at this file, or at a copy of it.
"""


def is_declared(target: Path, models: Sequence[CatalogModel]) -> bool:
    """Tell whether the target's model file names all of these models."""
    declared = {spec.alias for spec in _existing(target / MODEL_FILE_NAME).specs}
    return all(model.alias in declared for model in models)


def declare(target: Path, models: Sequence[CatalogModel]) -> Path:
    """Add the models that the target's model file doesn't name yet; return the file's path.

    A model becomes its modality's default only where there is none. A model file that can't be read
    raises ``ConfigurationError``.
    """
    path = target / MODEL_FILE_NAME
    existing = _existing(path)
    declared = {spec.alias for spec in existing.specs}
    taken = {spec.modality for spec in existing.specs if spec.default}
    text = path.read_text(encoding="utf-8").rstrip("\n") + "\n" if path.exists() else _HEADER
    for model in models:
        if model.alias not in declared:
            text += _table(model, default=model.modality not in taken)
            taken.add(model.modality)
    parse_model_text(text, path)
    fresh = path.with_suffix(".toml.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
    return path


def _existing(path: Path) -> ModelFile:
    return load_model_file(path) if path.exists() else ModelFile(specs=())


def _table(model: CatalogModel, *, default: bool) -> str:
    lines = [
        "",
        f'[models."{model.alias}"]' if "." in model.alias else f"[models.{model.alias}]",
        f'modality = "{model.modality.value}"',
        f'engine = "{model.engine}"',
        f'path = "{model.alias}"',
        *(["default = true"] if default else []),
    ]
    return "\n".join(lines) + "\n"
