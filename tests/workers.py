"""Real workers for the tests: a model file, a process, and the wait until it consumes."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis

from tests.helpers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SIMULATED = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
tokens_per_second = {rate}
[models.sim-vision]
modality = "vision"
engine = "simulated"
tokens = 4
[models.sim-audio]
modality = "audio"
engine = "simulated"
tokens = 4
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """A worker process that consumes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        """All it has logged so far."""
        return self.log.read_text(errors="replace")

    def report(self, client: redis.Redis) -> dict[str, object]:
        """Its own last report."""
        found: dict[str, object] = json.loads(client.get(f"ccs:worker:{self.name}") or b"{}")
        return found


def simulated_models(folder: Path, rate: float = 0) -> Path:
    """A model file with one simulated model per modality; ``rate`` is in tokens per second, 0 is at once."""
    path = folder / "models.toml"
    path.write_text(SIMULATED.format(rate=rate))
    return path


@contextmanager
def worker(
    url: str,
    models: Path,
    *,
    slots: int = 4,
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Iterator[RunningWorker]:
    """Run ``ccs worker`` and wait until it is ready; it is told to stop, and then made to, at the end."""
    name = f"test-{os.urandom(4).hex()}"
    log = models.parent / f"{name}.log"
    command = [
        sys.executable, "-m", "ccs_broker.cli", "worker", "--url", url, "--models", str(models),
        "--slots", str(slots), "--name", name, *options,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    running = RunningWorker(name=f"{name}@{platform.node()}", process=process, log=log)
    try:
        with redis.Redis.from_url(url) as client:
            wait_until(
                lambda: process.poll() is not None or running.report(client).get("state") == "ready",
                timeout_s,
                f"the worker to be ready; its log: {running.output[-2000:]}",
            )
        assert process.poll() is None, running.output[-4000:]
        yield running
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], timeout_s: float = 10.0) -> int:
    """Tell a process to stop, then make it; its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
