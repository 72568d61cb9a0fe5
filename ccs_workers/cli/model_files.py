"""Finds the model file a command works with, and prepares models under the eyes of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from rich.console import Console
    from rich.progress import ProgressColumn, Task, TaskID

    from ccs_workers.models.prepare import PrepareReport
    from ccs_workers.models.prepare import Progress as Report

__all__ = ["home_option", "models_option", "prepare_shown", "prepared_folder", "prepared_model_file"]

models_option = click.option(
    "--models",
    "model_file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="CCS_MODELS",
    show_envvar=True,
    metavar="FILE",
    help="The model file; without it, the one that 'ccs models prepare' wrote.",
)
home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="CCS_HOME",
    show_envvar=True,
    metavar="DIR",
    help="Prepared models lie in DIR/models; without it, in the user's cache.",
)

_MODEL_FILE_NAME: Final = "models.toml"


def prepared_folder(home: Path | None) -> Path:
    """The folder that 'ccs models prepare' fills unless told otherwise."""
    from ccs_workers.models.prepare import default_target

    return default_target({"CCS_HOME": str(home)} if home else {})


def prepared_model_file(home: Path | None) -> Path:
    """The model file in the prepared folder, whether it exists or not."""
    return prepared_folder(home) / _MODEL_FILE_NAME


def prepare_shown(target: Path, names: Sequence[str] | None, *, console: Console) -> PrepareReport:
    """Prepare models with progress bars on a terminal, and with a line per stage elsewhere."""
    from ccs_workers.models.prepare import prepare

    if not console.is_terminal:
        return prepare(target, names, progress=_lines(console))
    with _Bars(console) as bars:
        return prepare(target, names, progress=bars)


class _Bars:
    """One bar a stage: bytes for a download, steps for a conversion."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            _Amount(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total or None)
        self._progress.update(self._tasks[stage], completed=done, total=total or None)


class _Amount(DownloadColumn):
    """Bytes of a download, steps of anything else."""

    _steps: ProgressColumn = MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        if task.description.endswith("download"):
            return super().render(task)
        return Text(str(self._steps.render(task)))


def _lines(console: Console) -> Report:
    """A callback that prints a line where a stage begins and where it ends."""
    begun: set[str] = set()
    ended: set[str] = set()

    def show(stage: str, done: int, total: int) -> None:
        if stage not in begun:
            begun.add(stage)
            console.print(Text(f"{stage} ..."))
        # The size may be reached some time before the stage is over, and is then told again.
        if total and done >= total and stage not in ended:
            ended.add(stage)
            console.print(Text(f"{stage}: done"))

    return show
