"""The model file (``CCS_MODELS``): which models there are, and which one serves a job that names none."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccs_broker.contract.words import Modality
from ccs_broker.errors import ConfigurationError, NotFoundError
from ccs_workers.models.spec import ModelSpec, parse_sharing_spec, parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["ModelFile", "ModelSpec", "load_model_file", "parse_model_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """All declared models, in the file's order; at most one of a modality is marked as its default."""

    specs: tuple[ModelSpec, ...]

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the modalities that have a model, in the file's order."""
        return tuple(dict.fromkeys(spec.modality for spec in self.specs))

    def for_modalities(self, modalities: Iterable[str]) -> ModelFile:
        """Return the models of these modalities alone."""
        wanted = {Modality(word) for word in modalities}
        return ModelFile(specs=tuple(spec for spec in self.specs if spec.modality in wanted))

    def get(self, alias: str) -> ModelSpec:
        """Return the model of this alias; raise ``NotFoundError`` with the aliases there are."""
        for spec in self.specs:
            if spec.alias == alias:
                return spec
        known = ", ".join(spec.alias for spec in self.specs) or "none"
        raise NotFoundError(f"no model {alias!r}; the model file declares: {known}")

    def default_for(self, modality: str) -> ModelSpec:
        """Return the model marked as default, else the modality's only one.

        Raise ``NotFoundError`` where the modality has no model, ``ConfigurationError`` where it has
        several and none is marked.
        """
        candidates = self.for_modalities([modality]).specs
        if not candidates:
            raise NotFoundError(f"the model file declares no model of modality {str(modality)!r}")
        marked = [spec for spec in candidates if spec.default]
        if marked:
            return marked[0]
        if len(candidates) > 1:
            names = ", ".join(spec.alias for spec in candidates)
            raise ConfigurationError(
                f"several models of modality {str(modality)!r} and no default: name one in the job "
                f"({names}), or write 'default = true' in the table of one"
            )
        return candidates[0]


def load_model_file(path: Path) -> ModelFile:
    """Read a TOML model file; every fault raises ``ConfigurationError`` naming file, alias and key."""
    return parse_model_text(_read(path), path)


def parse_model_text(text: str, path: Path) -> ModelFile:
    """Parse the text of a model file that lies (or will lie) at ``path``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not a TOML file: {error}") from None
    tables = _tables(document, path)
    hosts = {
        alias: parse_spec(alias, table, folder=path.absolute().parent, source=str(path))
        for alias, table in tables.items()
        if "shares" not in table
    }
    specs = tuple(
        hosts.get(alias) or parse_sharing_spec(alias, table, hosts=hosts, source=str(path))
        for alias, table in tables.items()
    )
    _refuse_two_defaults(specs, path)
    return ModelFile(specs=specs)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: there is no such model file; 'ccs models prepare' writes one, CCS_MODELS names it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: the model file can't be read: {error}") from None


def _tables(document: dict[str, object], path: Path) -> dict[str, dict[str, object]]:
    strangers = sorted(set(document) - {"models"})
    if strangers:
        raise ConfigurationError(
            f"{path}: unknown key {strangers[0]!r}; models are tables named [models.ALIAS]"
        )
    models = document.get("models")
    if not isinstance(models, dict) or not models:
        raise ConfigurationError(f"{path}: 'models' declares no model; each is a table named [models.ALIAS]")
    tables: dict[str, dict[str, object]] = {}
    for alias, table in models.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}: model {alias!r}: must be a table [models.{alias}], not {table!r}"
            )
        # [models.a.b] is TOML for a table within a table, which nobody means here.
        if table and all(isinstance(value, dict) for value in table.values()) and "options" not in table:
            raise ConfigurationError(
                f'{path}: model {alias!r}: an alias with a dot is quoted: [models."{alias}.…"]'
            )
        tables[alias] = table
    return tables


def _refuse_two_defaults(specs: tuple[ModelSpec, ...], path: Path) -> None:
    taken: dict[str, str] = {}
    for spec in specs:
        if not spec.default:
            continue
        first = taken.setdefault(spec.modality, spec.alias)
        if first != spec.alias:
            raise ConfigurationError(
                f"{path}: model {spec.alias!r}: 'default' is true, but {first!r} already is the default of "
                f"modality {spec.modality.value!r}"
            )
