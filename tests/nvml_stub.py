"""A machine's GPUs as a text file, and questions to them through pynvml and a stub of NVIDIA's library.

The stub (``tests/stub_nvml/nvml.c``) is loaded by whatever process has :meth:`StubNvml.environment`. Run as a module,
this file answers a list of questions from standard input.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccs_broker.errors import ConfigurationError
from ccs_workers.devices import find_device
from ccs_workers.devices.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).parent / "stub_nvml" / "nvml.c"
VARIABLE = "CCS_STUB_NVML"
GIB = 1 << 30


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def gpu(uuid: str, *, used: int = 0, total: int = 80 * GIB, reserved: int = 0, **more: str) -> str:
    """One GPU as a line; ``mig`` is 1, 0 or - (not supported), ``model`` its name."""
    return f"gpu {uuid} {total} {reserved} {used} {more.get('mig', '-')} {more.get('model', 'NVIDIA H100')}"


def instance(uuid: str, *, used: int = 0, total: int = 10 * GIB) -> str:
    """A MIG instance of the GPU whose line is above."""
    return f"mig {uuid} {total} 0 {used}"


def process(pid: int, used: int | None, kind: str = "compute") -> str:
    """A process on the device whose line is above; None: NVML doesn't tell how much it uses."""
    return f"process {kind} {pid} {'-' if used is None else used}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A machine, the device that is wished for there, and what it then reads."""

    gpus: Sequence[str]
    wish: str = "cuda"
    environ: dict[str, str] | None = None
    own_pids: tuple[int, ...] = ()
    #: The machine after the device was found.
    later: Sequence[str] | None = None
    #: As on a machine, rather than in a container.
    every_process: bool = True
    driver: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question: ``error``, or the device and its reading."""

    error: str | None
    device: dict[str, str]
    reading: dict[str, Any]
    logged: list[str]

    @property
    def uuid(self) -> str:
        return self.device["uuid"]

    @property
    def memory(self) -> tuple[int | None, int | None, int | None]:
        """Total, used, and used by others."""
        return tuple(self.reading[f"{name}_bytes"] for name in ("total", "used", "others"))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class StubNvml:
    """The compiled stub."""

    folder: Path

    @classmethod
    def build(cls, folder: Path) -> StubNvml:
        """Compile it into this folder."""
        library = folder / "libnvidia-ml.so.1"
        subprocess.run(
            [
                str(compiler()),
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-shared",
                "-fPIC",
                "-o",
                library,
                SOURCE,
            ],
            check=True,
        )
        return cls(folder)

    def environment(self, machine: Path) -> dict[str, str]:
        """Variables of a process that finds the stub and, in this file, its GPUs."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), VARIABLE: str(machine)}

    def ask(self, folder: Path, *questions: Question, **environ: str) -> list[Answer]:
        """Answer these in one process of their own, each by a library initialized anew."""
        asked = [{name: getattr(question, name) for name in Question.__slots__} for question in questions]
        run = subprocess.run(
            [sys.executable, "-m", "tests.nvml_stub", folder],
            input=json.dumps(asked),
            env=self.environment(folder / "machine") | environ,
            cwd=SOURCE.parent.parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return [Answer(**answer) for answer in json.loads(run.stdout)]


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname} {record.getMessage()}")


def _root(folder: Path, *, every_process: bool, driver: bool) -> Path:
    """The parts of a machine that the room looks at besides NVML."""
    root = folder / f"root-{every_process:d}-{driver:d}"
    if not root.exists():
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]" if every_process else "pid:[4026532777]")
        (root / "dev").mkdir()
        if driver:
            (root / "dev/nvidiactl").touch()
    return root


def _answer(folder: Path, question: Question) -> dict[str, Any]:
    machine, records = folder / "machine", _Records()
    root_logger = logging.getLogger()
    root_logger.handlers = [records]
    root_logger.setLevel(logging.INFO)
    machine.write_text("\n".join(question.gpus) + "\n", encoding="utf-8")
    error, device, reading = None, {}, {}
    try:
        found = find_device(
            question.wish,
            question.environ or {},
            root=_root(folder, every_process=question.every_process, driver=question.driver),
            nvml=Nvml(),
        )
        if question.later is not None:
            machine.write_text("\n".join(question.later) + "\n", encoding="utf-8")
        read = found.read(question.own_pids)
        device = {name: getattr(found, name) for name in ("name", "uuid", "kind", "visible")}
        reading = {name: getattr(read, name) for name in (*read.__slots__, "free_bytes")}
    except ConfigurationError as refusal:
        error = refusal.message
    return {"error": error, "device": device, "reading": reading, "logged": records.texts}


def main() -> None:
    """Answer the questions on standard input."""
    folder = Path(sys.argv[1])
    answers = [_answer(folder, Question(**asked)) for asked in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
