"""One declared model: what the model file says of it, and what an engine process is handed."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ccs_broker.contract.words import Modality
from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

DTYPES: Final = ("float32", "bfloat16", "float16", "auto")
#: Engines that load no weights, so that their model needs neither a folder nor a hub id.
WEIGHTLESS_ENGINES: Final = frozenset({"simulated"})
#: Keys of a model's table that have a meaning of their own; every other one is an engine's option.
KNOWN_KEYS: Final = (
    "modality", "engine", "path", "hub", "revision", "dtype", "device", "default", "shares", "options",
)  # fmt: skip

#: Options that name a file, relative to the model file like ``path``.
_FILES: Final = frozenset({"reference"})

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENGINE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_DEVICE = re.compile(r"[a-z]+(:[0-9]+)?")
#: So close to a known key that it is a slip of the pen rather than an option.
_TYPO_LIKENESS = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as declared: it lies at ``path`` (absolute) or ``hub``, unless its engine is weightless."""

    alias: str
    modality: Modality
    engine: str
    path: Path | None = None
    hub: str | None = None
    #: A branch, tag or commit of ``hub``.
    revision: str | None = None
    #: One of ``DTYPES``: what the weights are loaded as, whatever they are stored as.
    dtype: str = "float32"
    #: ``auto``, or a device as torch writes it (``cpu``, ``cuda:1``).
    device: str = "auto"
    #: True for the model that serves its modality's jobs that name none.
    default: bool = False
    #: The model whose engine process serves this one too; all but alias, modality and ``default`` is then its own.
    host: ModelSpec | None = field(default=None, hash=False)
    #: Read-only; what the engine alone understands.
    options: Mapping[str, JsonValue] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @property
    def serving(self) -> ModelSpec:
        """Return the model whose engine runs this one's jobs: itself, unless it shares another's."""
        return self.host or self

    @property
    def source(self) -> str:
        """Return what a loader is given: the folder or the hub id; empty for a weightless engine."""
        return str(self.path) if self.path is not None else self.hub or ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return plain values from which ``from_json`` rebuilds the spec, but for its host, in another process."""
        return {
            "alias": self.alias,
            "modality": self.modality.value,
            "engine": self.engine,
            "path": None if self.path is None else str(self.path),
            "hub": self.hub,
            "revision": self.revision,
            "dtype": self.dtype,
            "device": self.device,
            "default": self.default,
            "options": dict(self.options),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> ModelSpec:
        """Rebuild a spec from ``to_json``; raise ``ConfigurationError`` where it isn't one."""
        table = {key: value for key, value in data.items() if key != "alias" and value is not None}
        return parse_spec(str(data.get("alias", "")), table, folder=Path("/"), source="model spec")


def parse_spec(alias: str, table: Mapping[str, object], *, folder: Path, source: str) -> ModelSpec:
    """Read the table of one alias; a relative ``path`` starts at ``folder``.

    Every fault raises ``ConfigurationError`` with ``source`` (the file), the alias and the key in it.
    """
    _check_alias(alias, source)
    reader = _Table(table, f"{source}: model {alias!r}")
    engine = reader.matching("engine", _ENGINE, "a name such as 'text' or 'simulated'")
    path, hub, revision = _place(reader, engine, folder)
    return ModelSpec(
        alias=alias,
        modality=Modality(reader.one_of("modality", tuple(Modality), default=None)),
        engine=engine,
        path=path,
        hub=hub,
        revision=revision,
        dtype=reader.one_of("dtype", DTYPES, default="float32"),
        device=reader.matching("device", _DEVICE, "'auto', 'cpu', 'cuda' or 'cuda:1'", default="auto"),
        default=reader.flag("default"),
        options=MappingProxyType(_with_whole_paths(reader.options(), folder)),
    )


def parse_sharing_spec(
    alias: str, table: Mapping[str, object], *, hosts: Mapping[str, ModelSpec], source: str
) -> ModelSpec:
    """Read the table of an alias with the key ``shares``: another modality of a model in ``hosts``.

    Every fault raises ``ConfigurationError`` with ``source`` (the file), the alias and the key in it.
    """
    _check_alias(alias, source)
    reader = _Table(table, f"{source}: model {alias!r}")
    if strangers := sorted(set(table) - {"modality", "default", "shares"}):
        raise reader.fault(strangers[0], "belongs to the model whose engine is shared, not here")
    host = hosts.get(reader.text("shares") or "")
    if host is None:
        raise reader.fault("shares", "must name a model of this file that has an engine of its own")
    modality = Modality(reader.one_of("modality", tuple(Modality), default=None))
    return replace(host, alias=alias, modality=modality, default=reader.flag("default"), host=host)


def _check_alias(alias: str, source: str) -> None:
    if not _ALIAS.fullmatch(alias):
        raise ConfigurationError(
            f"{source}: model alias {alias!r}: must be 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )


def _with_whole_paths(options: dict[str, JsonValue], folder: Path) -> dict[str, JsonValue]:
    """Let the options that name a file begin at the model file's folder."""
    paths = {
        name: str(folder / value)
        for name, value in options.items()
        if name in _FILES and isinstance(value, str)
    }
    return {**options, **paths}


def _place(reader: _Table, engine: str, folder: Path) -> tuple[Path | None, str | None, str | None]:
    path, hub, revision = (reader.text(key) for key in ("path", "hub", "revision"))
    if path and hub:
        raise reader.fault("path", "and 'hub' are both given; keep the one that is meant")
    if not (path or hub) and engine not in WEIGHTLESS_ENGINES:
        raise reader.fault(
            "path", f"is missing: the engine {engine!r} needs a local folder ('path') or a 'hub' id"
        )
    if revision and not hub:
        raise reader.fault("revision", "belongs to 'hub', which isn't given")
    return (folder / Path(path).expanduser() if path else None), hub, revision


class _Table:
    """Typed access to one alias's table; every complaint names where it is."""

    def __init__(self, table: Mapping[str, object], where: str) -> None:
        self._table = table
        self._where = where

    def fault(self, key: str, complaint: str) -> ConfigurationError:
        return ConfigurationError(f"{self._where}: {key!r} {complaint}")

    def text(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.fault(key, f"must be a non-empty string, not {value!r}")
        return value

    def matching(self, key: str, pattern: re.Pattern[str], wanted: str, default: str | None = None) -> str:
        value = self.text(key) or default
        if value is None:
            raise self.fault(key, f"is missing: give {wanted}")
        if not pattern.fullmatch(value):
            raise self.fault(key, f"must be {wanted}, not {value!r}")
        return value

    def one_of(self, key: str, words: tuple[str, ...], default: str | None) -> str:
        value = self.text(key) or default
        if value is None:
            raise self.fault(key, f"is missing: give one of {', '.join(words)}")
        if value not in words:
            raise self.fault(key, f"must be one of {', '.join(words)}, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self._table.get(key, False)
        if not isinstance(value, bool):
            raise self.fault(key, f"must be true or false, not {value!r}")
        return value

    def options(self) -> dict[str, JsonValue]:
        """Join the sub-table ``options`` and the unknown keys beside it."""
        named = self._table.get("options", {})
        if not isinstance(named, dict):
            raise self.fault("options", f"must be a table, not {named!r}")
        options = dict(named)
        for key, value in self._table.items():
            if key in KNOWN_KEYS:
                continue
            if near := difflib.get_close_matches(key, KNOWN_KEYS, n=1, cutoff=_TYPO_LIKENESS):
                raise self.fault(
                    key, f"is unknown; did you mean {near[0]!r}? (A real option goes under 'options'.)"
                )
            if key in options:
                raise self.fault(key, "is given twice: beside 'options' and in it")
            options[key] = value
        return {key: self._json_like(value, key) for key, value in options.items()}

    def _json_like(self, value: object, key: str) -> JsonValue:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, list):
            return [self._json_like(item, key) for item in value]
        if isinstance(value, dict):
            return {str(name): self._json_like(item, f"{key}.{name}") for name, item in value.items()}
        raise self.fault(key, f"must be made of what JSON knows, not {value!r}")
