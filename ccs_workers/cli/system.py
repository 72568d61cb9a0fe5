"""The whole system on this machine: a server, one worker and Flower, started in order and ended in order."""

from __future__ import annotations

import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rich.text import Text

from ccs_broker.cli.output import printable
from ccs_broker.errors import QueueUnavailableError, WaitTimeoutError, WorkerLostError
from ccs_workers.cli.flower import start_flower
from ccs_workers.cli.processes import Child, stop_all
from ccs_workers.settings import shown_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from ccs_broker.client import Client
    from ccs_broker.contract import Modality
    from ccs_broker.server import EmbeddedServer
    from ccs_workers.cli.flower import Flower
    from ccs_workers.settings import SlotPlan

__all__ = ["LocalSystem", "SystemOptions", "ending_on_signals", "loading", "local_system", "show_log"]

#: Real models load in seconds, but a busy small machine may need many of them.
_READY_LIMIT_S: Final = 180.0
_FLOWER_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.1
_EXIT_BY_SIGNAL: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemOptions:
    """What to start. Without ``url`` a server of its own is started too."""

    url: str | None
    model_file: Path
    modalities: tuple[str, ...]
    slots: SlotPlan
    device: str
    allocation: str
    floors: Mapping[Modality, int]
    flower: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSystem:
    """The running parts."""

    url: str
    worker_name: str
    modalities: tuple[str, ...]
    worker: Child
    flower: Flower | None
    #: None where the server was there before.
    server: EmbeddedServer | None = None

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return re.sub(r"//([^:/@]*):[^@]*@", r"//\1:***@", self.url)

    def report(self, client: Client) -> Mapping[str, Any]:
        """What the worker reports of itself; empty before its first report.

        Raises:
            WorkerLostError: its process has ended.
        """
        self.require_worker()
        named = (info.report for info in client.workers() if self.worker_name in info.name)
        return next(named, {})

    def require_worker(self) -> None:
        """Raise ``WorkerLostError`` where the worker's process has ended."""
        if not self.worker.alive:
            raise WorkerLostError(f"the worker has ended; its log is {self.worker.log}")

    def require_server(self) -> None:
        """Raise ``QueueUnavailableError`` where the server's process has ended."""
        if self.server is not None and not self.server.alive:
            raise QueueUnavailableError("the server that was started here has ended")

    def wait_for_flower(self) -> bool:
        """Wait until Flower answers; False where it doesn't."""
        flower = self.flower
        deadline = time.monotonic() + _FLOWER_LIMIT_S
        while flower is not None and flower.child.alive and time.monotonic() < deadline:
            if flower.ready():
                return True
            time.sleep(_POLL_S)
        return False


@contextmanager
def local_system(options: SystemOptions, *, console: Console) -> Iterator[LocalSystem]:
    """Start server, worker and Flower, and end whatever was started however the block ends.

    After an error the last lines of the worker's log are shown and the logs are kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="ccs-logs-"))
    keep_logs = False
    try:
        with ExitStack() as parts:
            server = None if options.url else _start_server(parts)
            url = options.url or (server.url if server else "")
            children: list[Child] = []
            # Entered after the server, so ended before it: the worker hands back what it holds.
            parts.callback(_stop, children)
            name = f"local-{secrets.token_hex(4)}"
            worker = _start_worker(options, url, name, folder)
            children.append(worker)
            flower = start_flower(url, folder) if options.flower else None
            if flower is not None:
                children.append(flower.child)
            try:
                yield LocalSystem(
                    url=url,
                    worker_name=name,
                    modalities=options.modalities,
                    worker=worker,
                    flower=flower,
                    server=server,
                )
            except Exception:
                keep_logs = True
                show_log(worker, console)
                raise
    finally:
        if not keep_logs:
            shutil.rmtree(folder, ignore_errors=True)


def loading(system: LocalSystem, client: Client) -> Iterator[Mapping[str, Any]]:
    """Give the worker's report again and again until the worker is ready.

    Raises:
        WorkerLostError: its process has ended.
        WaitTimeoutError: it took too long.
    """
    deadline = time.monotonic() + _READY_LIMIT_S
    while True:
        report = system.report(client)
        yield report
        if report.get("state") == "ready":
            return
        if time.monotonic() > deadline:
            raise WaitTimeoutError(
                f"the worker wasn't ready within {_READY_LIMIT_S:g} s; its log is {system.worker.log}"
            )
        time.sleep(_POLL_S)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an orderly exit, so that everything that was started is ended."""

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(_EXIT_BY_SIGNAL + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_server(parts: ExitStack) -> EmbeddedServer:
    from ccs_broker.server import EmbeddedServer

    return parts.enter_context(EmbeddedServer())


def _start_worker(options: SystemOptions, url: str, name: str, folder: Path) -> Child:
    command = [
        sys.executable, "-m", "ccs_broker.cli", "worker",
        "--modalities", ",".join(options.modalities),
        "--slots", str(options.slots),
        "--device", options.device,
        "--allocation", options.allocation,
        *(("--floors", shown_parts(options.floors)) if options.floors else ()),
        "--models", str(options.model_file.absolute()),
        "--name", name,
    ]  # fmt: skip
    # The URL may hold a password, so it isn't on the command line.
    return Child("worker", command, log=folder / "worker.log", environment={"CCS_REDIS_URL": url})


def _stop(children: list[Child]) -> None:
    """End all children; a second Ctrl-C must not leave half of them behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        stop_all(children)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_log(child: Child, console: Console) -> None:
    """Print the last lines of a child's log."""
    if tail := child.tail():
        console.print(Text(f"--- last lines of the {child.name}'s log", style="bold"))
        console.print(Text(printable(tail), style="dim"))
