"""Limits that cgroups put on this process's memory, read from the mounts and groups that it really has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Bound", "cgroup_bounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One limit that this process's memory counts against, together with that of other processes."""

    #: The same for all processes under this limit.
    key: str
    #: None: there is a limit that can't be read; ``reason`` says why.
    limit_bytes: int | None
    #: Without ``cache_bytes``. None: unknown; ``reason`` says why.
    used_bytes: int | None
    #: File cache that the kernel takes back before anybody runs out of memory.
    cache_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Names in one version of the memory controller."""

    limits: tuple[str, ...]
    usage: str
    cache: str
    #: Holds 0 in a group whose limit doesn't reach its children.
    hierarchy: str = ""


_V1: Final = _Files(
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    cache="total_inactive_file",
    hierarchy="memory.use_hierarchy",
)
# A group over memory.high isn't killed but throttled until it hardly runs: for us that is full.
_V2: Final = _Files(limits=("memory.max", "memory.high"), usage="memory.current", cache="inactive_file")

_KINDS: Final = frozenset({"cgroup", "cgroup2"})
_MOUNT_FIELDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    kind: str
    #: The group that the mount point shows.
    top: PurePosixPath
    point: PurePosixPath
    controllers: frozenset[str]


def cgroup_bounds(root: Path = Path("/")) -> list[Bound]:
    """Every limit of this process's group and the groups above it, the nearest first.

    Args:
        root: where ``proc`` and the mount points are found.
    """
    mounts = list(_mounts(root))
    bounds = []
    for path, kind in _own_groups(root):
        fitting = [
            mount
            for mount in mounts
            if mount.kind == kind and (kind == "cgroup2" or "memory" in mount.controllers)
        ]
        if fitting:
            names = _V2 if kind == "cgroup2" else _V1
            bounds += [
                bound for folder in _folders(root, path, fitting, names) for bound in _bound(folder, names)
            ]
    return bounds


def _own_groups(root: Path) -> Iterator[tuple[PurePosixPath, str]]:
    """This process's group in each hierarchy that may hold the memory controller, with its kind of file system."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers and path:
            yield PurePosixPath(path), "cgroup2"
        elif "memory" in controllers.split(",") and path:
            yield PurePosixPath(path), "cgroup"


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _lines(root / "proc/self/mountinfo"):
        # Numbers, top and point, options; optional fields; a dash; file system, source, its own options.
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) >= _MOUNT_FIELDS and left[4].startswith("/") and right and right[0] in _KINDS:
            yield _Mount(
                kind=right[0],
                top=PurePosixPath(_unescaped(left[3])),
                point=PurePosixPath(_unescaped(left[4])),
                controllers=frozenset(right[-1].split(",")),
            )


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _folders(root: Path, path: PurePosixPath, mounts: list[_Mount], names: _Files) -> Iterator[Path]:
    """The group's folder and those above it up to the mount point, as far as they can be seen from here."""
    above = [mount for mount in mounts if path.is_relative_to(mount.top) and ".." not in path.parts]
    # The mount that shows most of what is above us; without one (another namespace's), its mount point at least.
    mount = min(above or mounts, key=lambda mount: len(mount.top.parts))
    point = root / mount.point.relative_to("/")
    folder = point / path.relative_to(mount.top) if above else point
    yield folder
    while folder != point:
        folder = folder.parent
        if names.hierarchy and _text(folder / names.hierarchy) == "0":
            return
        yield folder


def _bound(folder: Path, names: _Files) -> list[Bound]:
    """The limit of one group; empty if it has none."""
    limits = []
    for name in names.limits:
        text = _text(folder / name)
        if text is None or text == "max":
            continue
        if not (text.isascii() and text.isdecimal()):
            return [
                Bound(
                    key="", limit_bytes=None, used_bytes=None, reason=f"{name} can't be read: {text[:40]!r}"
                )
            ]
        limits.append(int(text))
    if not limits:
        return []
    usage = _text(folder / names.usage) or ""
    known = usage.isascii() and usage.isdecimal()
    # Without memory.stat the cache counts as used: too much is safe, too little is not.
    cache = min(_statistic(folder / "memory.stat", names.cache), int(usage)) if known else 0
    return [
        Bound(
            key=_key(folder),
            limit_bytes=min(limits),
            used_bytes=int(usage) - cache if known else None,
            cache_bytes=cache,
            reason="" if known else f"{names.usage} can't be read: {usage[:40]!r}",
        )
    ]


def _key(folder: Path) -> str:
    # The number of the folder is the group's own, however its path looks from inside a namespace.
    try:
        found = folder.stat()
    except OSError:
        return str(folder)
    return f"{found.st_dev}:{found.st_ino}"


def _statistic(path: Path, name: str) -> int:
    for line in _lines(path):
        word, _, value = line.partition(" ")
        if word == name and value.isascii() and value.isdecimal():
            return int(value)
    return 0


def _text(path: Path) -> str | None:
    """The file's text; None if there is no such file, what went wrong if it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or "unreadable"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
