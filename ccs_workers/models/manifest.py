"""The manifest of a prepared folder: written last, so a folder that has one is whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ccs_workers.models.catalog import CatalogModel

__all__ = ["CONVERTER_VERSION", "MANIFEST_NAME", "FileEntry", "Manifest", "SourceWheel", "sha256_of"]

MANIFEST_NAME: Final = "ccs-prepared.json"
#: Raised whenever a converter writes something else; folders of another version are prepared anew.
CONVERTER_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWheel:
    """The wheel that a folder was made from."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a prepared folder."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a prepared folder was made from, by which converter, and every file in it."""

    alias: str
    converter: int
    sources: tuple[SourceWheel, ...]
    #: By path relative to the folder, written with forward slashes.
    files: Mapping[str, FileEntry]

    @classmethod
    def describe(cls, folder: Path, model: CatalogModel) -> Manifest:
        """Measure every file of a folder that has just been converted."""
        found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
        return cls(
            alias=model.alias,
            converter=CONVERTER_VERSION,
            sources=_sources(model),
            files={path.relative_to(folder).as_posix(): _entry(path) for path in found},
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Return the folder's manifest, or ``None`` where there is none or it can't be understood."""
        try:
            data = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
            return _parse(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder; the last step before the folder gets its name."""
        data = {
            "alias": self.alias,
            "converter": self.converter,
            "sources": [{"name": s.name, "version": s.version, "sha256": s.sha256} for s in self.sources],
            "files": {
                name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256}
                for name, entry in self.files.items()
            },
        }
        (folder / MANIFEST_NAME).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def is_current(self, model: CatalogModel) -> bool:
        """Tell whether today's converter would make this folder from the same wheels."""
        return self.converter == CONVERTER_VERSION and self.sources == _sources(model)

    def faults(self, folder: Path, *, deep: bool = False) -> list[str]:
        """Compare the folder with the manifest: sizes, and hashes too where ``deep``."""
        complaints = []
        for name, entry in self.files.items():
            path = folder / name
            if not path.is_file():
                complaints.append(f"{name} is missing")
            elif (size := path.stat().st_size) != entry.size_bytes:
                complaints.append(f"{name} has {size} bytes instead of {entry.size_bytes}")
            elif deep and sha256_of(path) != entry.sha256:
                complaints.append(f"{name} has changed since it was prepared (sha256)")
        return complaints

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size_bytes for entry in self.files.values())


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _entry(path: Path) -> FileEntry:
    return FileEntry(size_bytes=path.stat().st_size, sha256=sha256_of(path))


def _sources(model: CatalogModel) -> tuple[SourceWheel, ...]:
    return tuple(SourceWheel(name=w.name, version=w.version, sha256=w.sha256) for w in model.wheels)


def _parse(data: dict[str, Any]) -> Manifest:
    return Manifest(
        alias=str(data["alias"]),
        converter=int(data["converter"]),
        sources=tuple(SourceWheel(**source) for source in data["sources"]),
        files={str(name): FileEntry(**entry) for name, entry in data["files"].items()},
    )
