"""Child processes of the local system: started with a log, ended with all they started, never left over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from ccs_broker import server_guard
from ccs_workers.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Child", "stop_all"]

#: Seconds from SIGTERM to SIGKILL: a worker hands back what it holds.
STOP_LIMIT_S: Final = 10.0
_KILL_LIMIT_S: Final = 5.0
_TAIL_BYTES: Final = 16 * 1024


class Child:
    """One process under a guard, in a session of its own, with its output in ``log``.

    The guard ends it when this process is gone, killed or not. A Ctrl-C in the terminal reaches this process
    alone, which then ends its children in order.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        guard = [sys.executable, "-I", "-S", server_guard.__file__, str(os.getpid()), ""]
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env=child_environment(**(environment or {})),
                cwd=directory,
            )
        assert self._guard.stdout is not None
        with self._guard.stdout:
            #: Process id of the command itself; 0 if it could not be started.
            self.pid = int(self._guard.stdout.readline() or 0)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._guard.poll() is None

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process, and to nothing else."""
        with contextlib.suppress(ProcessLookupError):
            if self.pid and self.alive:
                os.kill(self.pid, signal.SIGTERM)

    def end(self, limit_s: float) -> None:
        """Wait for the end until the limit has passed, then end the process and all that it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(limit_s)
        # The guard leads the session's process group. Whatever is still in it has lost its parent.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait(_KILL_LIMIT_S)


def stop_all(children: Iterable[Child], limit_s: float = STOP_LIMIT_S) -> None:
    """Ask all to stop, then wait for each; together they take ``limit_s`` seconds at most."""
    stopping = list(children)
    deadline = time.monotonic() + limit_s
    for child in stopping:
        child.ask_to_stop()
    for child in stopping:
        child.end(max(0.0, deadline - time.monotonic()))
