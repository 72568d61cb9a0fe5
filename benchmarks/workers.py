"""Starts the workers that benchmarks measure, waits until they consume, and ends them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis

from ccs_broker import topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: Seconds that a worker has to be ready, models loaded, and to end after SIGTERM.
_READY_LIMIT_S: Final = 120.0
_END_LIMIT_S: Final = 40.0
_LOOK_EVERY_S: Final = 0.05


def parser_with_models(description: str) -> argparse.ArgumentParser:
    """A benchmark's options, with ``--models`` for the file of the real ones, as a path."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models",
        type=lambda text: Path(text).expanduser(),
        default="~/.cache/ccs-workers/models/models.toml",
        help="of the real engines",
        metavar="FILE",
    )
    return parser


def worker_command(url: str, models: Path, slots: int, name: str, *options: str) -> list[str]:
    """The command line of ``ccs worker``."""
    return [
        sys.executable, "-m", "ccs_broker.cli", "worker", "--url", url, "--models", str(models),
        "--slots", str(slots), "--name", name, *options,
    ]  # fmt: skip


def node_of(name: str) -> str:
    """A worker's name in events and reports."""
    return f"{name}@{platform.node()}"


def report_key(node: str) -> str:
    """Key of the server under which a worker reports."""
    return topology.WORKER + node


def says_ready(report: bytes) -> bool:
    """Whether a worker's report says that it consumes."""
    return bool(json.loads(report)["state"] == "ready")


def launch(
    command: Sequence[str], log: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C in the terminal reaches the benchmark, which ends it."""
    with log.open("wb") if log else open(os.devnull, "wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


@contextmanager
def running(
    command: Sequence[str], log: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is told to end, and then made to."""
    process = launch(command, log, environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def ccs_worker(
    url: str,
    models: Path,
    slots: int,
    *options: str,
    inside: Callable[[list[str]], list[str]] = list,
    log_folder: Path | None = None,
) -> Iterator[str]:
    """``ccs worker``, consuming; its node name. It logs its errors beside the model file, or in ``log_folder``.

    ``inside`` may wrap its command line.

    Raises:
        RuntimeError: it ended, or wasn't ready in time; the last lines of its log.
    """
    name = f"bench-{uuid.uuid4().hex[:8]}"
    log = (log_folder or models.parent) / f"{name}.log"
    command = inside(worker_command(url, models, slots, name, "--log-level", "error", *options))
    with running(command, log) as process, Redis.from_url(url) as redis:
        deadline = time.monotonic() + _READY_LIMIT_S
        while not ((report := redis.get(report_key(node_of(name)))) and says_ready(report)):
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").splitlines()[-5:]
                raise RuntimeError(f"the worker is not ready: {' / '.join(last)}")
            time.sleep(_LOOK_EVERY_S)
        yield node_of(name)
