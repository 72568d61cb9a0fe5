"""Run one server process that ends when the process that asked for it is gone, however that one died.

Started by file path in an interpreter of its own, so it may import the standard library only. Its standard
input is a pipe that the parent never writes to: end of file means that the parent is gone. A forked child of
the parent can hold that pipe open, so the parent's process id is looked at as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PARENT_CHECK_S = 0.5
TERMINATE_LIMIT_S = 2.0
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run ``parent_pid directory_to_remove command...`` and return the command's exit status.

    The first line on standard output is the server's process id. The directory (empty: none) is removed only
    where the parent can't do it any more.
    """
    parent_pid, directory, command = int(arguments[0]), arguments[1], arguments[2:]
    wake = _wake_on_signals()
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), preexec_fn=_die_with_guard()
    )
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{server.pid}\n".encode())
    if _parent_left_first(server, parent_pid, wake):
        _end(server)
        if directory:
            shutil.rmtree(directory, ignore_errors=True)
    return server.wait()


def _wake_on_signals() -> int:
    """Turn SIGCHLD and SIGTERM into bytes on the pipe whose reading end is returned."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # A Ctrl-C in the terminal is the parent's to handle: it may need the server for an orderly end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reading


def _parent_left_first(server: subprocess.Popen[bytes], parent_pid: int, wake: int) -> bool:
    """Wait for the server to end (False) or for the parent, or a SIGTERM, to end it (True)."""
    while server.poll() is None:
        ready, _, _ = select.select([sys.stdin.fileno(), wake], [], [], PARENT_CHECK_S)
        if sys.stdin.fileno() in ready or os.getppid() != parent_pid:
            return True
        if wake in ready and signal.SIGTERM in os.read(wake, 64):
            return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(TERMINATE_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()


def _die_with_guard() -> Callable[[], object] | None:
    """On Linux, a hook that has the kernel kill the server when this process is killed.

    The signal comes when the forking *thread* ends; this process has one thread only.
    """
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
