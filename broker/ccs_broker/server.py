"""A server of one's own for a demo, a development stack or a test: started here, ended here, never left over.

Production runs its own Redis or Valkey; ``Client`` and ``ccs worker`` never start one.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from ccs_broker.errors import ConfigurationError
from ccs_broker.server_binary import find_server_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = ["EmbeddedServer", "free_port"]

START_ATTEMPTS: Final = 8
START_LIMIT_S: Final = 15.0
POLL_S: Final = 0.01
ADMIN_TIMEOUT_S: Final = 1.0
END_LIMIT_S: Final = 3.0

# Below the ports that Linux and macOS lend to outgoing connections: a client that reconnects in a loop while
# the server is down could be lent the very port, connect to itself, and keep the server from coming back.
PORTS: Final = range(20_000, 32_000)

_GUARD: Final = Path(__file__).with_name("server_guard.py")


def free_port() -> int:
    """A port of the loopback address that nothing listens on now; another process may still take it."""
    # Forked test processes share the state of the common generator, and so its next ports.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ConfigurationError(f"no free port on 127.0.0.1 from {PORTS.start} to {PORTS.stop - 1}")


class _PortTakenError(Exception):
    """Another process took the port between the look and the start."""


class EmbeddedServer:
    """One server process on the loopback address or a unix socket, in a directory of its own.

    It keeps nothing on disk and evicts nothing unless told to, and it ends when this process ends, killed or
    not. Use it as a context manager, or call ``start`` and ``stop``. Not for several threads at once.

    ``config`` holds further directives of the server's configuration file, as they would stand there; they
    win over the defaults, but not over address, port and directory. A ``directory`` that is given is kept;
    one that isn't is a temporary one, removed by ``stop``.
    """

    def __init__(
        self,
        *,
        binary: Path | str | None = None,
        directory: Path | str | None = None,
        unix_socket: bool = False,
        appendonly: bool = False,
        maxmemory_bytes: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._binary = Path(binary) if binary is not None else find_server_binary()
        self._keep_directory = directory is not None
        self._directory = Path(directory) if directory is not None else None
        self._unix_socket = unix_socket
        self._directives = {
            "save": '""',
            "appendonly": "yes" if appendonly else "no",
            # As in broker/redis.conf: what a job's log takes from its first event on.
            "stream-node-max-bytes": "1024",
            "maxmemory": str(maxmemory_bytes or 0),
            "maxmemory-policy": "noeviction",
            **(config or {}),
        }
        self._port = 0
        self._pid = 0
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """For redis-py; Celery names a unix socket ``redis+socket://`` instead of ``unix://``."""
        if self._unix_socket:
            return f"unix://{self.directory / 'server.sock'}?db=0"
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def port(self) -> int:
        """The port of this start and of every restart; 0 before the first start and on a unix socket."""
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the server itself; 0 before the first start."""
        return self._pid

    @property
    def directory(self) -> Path:
        """Where the server keeps its configuration, log, socket and data."""
        if self._directory is None:
            raise ConfigurationError("the server has not been started")
        return self._directory

    @property
    def alive(self) -> bool:
        """Whether the server process runs (it may still be frozen or busy)."""
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> Self:
        """Start the server and return when it answers; ``ConfigurationError`` says why it doesn't."""
        if self.alive:
            return self
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ccs-"))
        try:
            self._start_on_free_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server, by the gentlest way that works, and remove its temporary directory."""
        self._end(self._ask_shutdown, self._terminate, self._kill)
        if self._directory is not None and not self._keep_directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; ``restart`` brings it back."""
        self._end(self._kill)

    def restart(self) -> None:
        """End the server if it runs and start it again on the same port and directory."""
        self._end(self._ask_shutdown, self._terminate, self._kill)
        self.start()

    def _start_on_free_port(self) -> None:
        for _ in range(START_ATTEMPTS):
            port = 0 if self._unix_socket else self._port or free_port()
            with contextlib.suppress(_PortTakenError):
                self._launch(port)
                self._port = port
                return
        raise ConfigurationError(f"{self._binary.name} found its port in use {START_ATTEMPTS} times")

    def _launch(self, port: int) -> None:
        self._write_configuration(port)
        removable = "" if self._keep_directory else str(self.directory)
        guard_command = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), removable]
        with (self.directory / "server.log").open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches this process, not the server under it.
            guard = subprocess.Popen(
                [*guard_command, str(self._binary), str(self.directory / "server.conf")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._guard = guard
        assert guard.stdout is not None
        with guard.stdout:
            self._pid = int(guard.stdout.readline() or 0)
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers(port):
            if not self.alive:
                self._explain_end()
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{self._binary.name} did not answer within {START_LIMIT_S:g} s")
            time.sleep(POLL_S)

    def _write_configuration(self, port: int) -> None:
        directives = {
            **self._directives,
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": f'"{self.directory}"',
            "daemonize": "no",
            "logfile": '""',
        }
        if self._unix_socket:
            directives |= {"unixsocket": f'"{self.directory / "server.sock"}"', "unixsocketperm": "700"}
        lines = [f"{name} {value}" for name, value in directives.items()]
        if any("\n" in line for line in lines):
            raise ConfigurationError("a server directive holds a line break")
        path = self.directory / "server.conf"
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _explain_end(self) -> None:
        log = (self.directory / "server.log").read_text(encoding="utf-8", errors="replace").strip()
        if "in use" in log:
            self._release_guard()
            raise _PortTakenError
        raise ConfigurationError(f"{self._binary} ended at its start: {' '.join(log.splitlines()[-3:])}")

    def _admin(self, port: int) -> redis.Redis:
        socket_path = str(self.directory / "server.sock") if self._unix_socket else None
        return redis.Redis(
            host="127.0.0.1",
            port=port,
            unix_socket_path=socket_path,
            socket_timeout=ADMIN_TIMEOUT_S,
            socket_connect_timeout=ADMIN_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    def _answers(self, port: int) -> bool:
        """Whether this very server answers: a stranger may have won the port and greet just as well."""
        with contextlib.closing(self._admin(port)) as client:
            try:
                client.ping()
                return bool(client.info("server")["process_id"] == self._pid)
            except (AuthenticationError, NoPermissionError):
                return self.alive
            except RedisError:
                return False

    def _end(self, *ways: Callable[[], bool]) -> None:
        """Try each way of ending the server until its guard, which outlives it, has gone."""
        guard = self._guard
        if guard is None:
            return
        for way in ways:
            if guard.poll() is not None:
                break
            if way():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    guard.wait(END_LIMIT_S)
        self._release_guard()

    def _release_guard(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait(END_LIMIT_S)
        self._guard = None

    def _ask_shutdown(self) -> bool:
        with contextlib.closing(self._admin(self._port)) as client:
            try:
                client.ping()
            except RedisError:
                return False
            # The answer to an obeyed SHUTDOWN is a closed connection.
            with contextlib.suppress(RedisError):
                client.shutdown(nosave=True)
        return True

    def _terminate(self) -> bool:
        return self._signal(signal.SIGTERM)

    def _kill(self) -> bool:
        return self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> bool:
        with contextlib.suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, number)
                return True
        return False
