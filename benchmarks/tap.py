"""A tap on the wire between clients and a server: passes every byte on and counts the commands and round trips sent.

The server's own counters can't tell this: ``commandstats`` adds what scripts call to what was sent, and
``total_reads_processed`` counts pieces of requests, of everybody. On the wire both are exact, client by client.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Self

from hiredis import PushNotification, Reader

from ccs_broker.scripts import script

if TYPE_CHECKING:
    from types import TracebackType

_RECEIVE_BYTES: Final = 1 << 16
_LOOK_EVERY_S: Final = 0.1
#: The pop of tickets, and what it is called here when it brought none.
POP: Final = "BRPOP"
IDLE_POP: Final = "BRPOP, no ticket"
#: Celery's own events, by the channels they go to.
TASK_EVENTS: Final = "PUBLISH, task events"
HEARTBEAT: Final = "PUBLISH, heartbeat"
_EVENTS: Final = b"celeryev"
_TASK_EVENTS: Final = b"/task."


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was sent: commands by name, and round trips by the name of their first command.

    A script goes by its own name. A round trip begins with a command sent while no reply is outstanding on its
    connection, so a pipeline is one.
    """

    commands: Counter[str]
    trips: Counter[str]

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.commands - before.commands, self.trips - before.trips)


@dataclass(slots=True)
class _Flow:
    """One connection. Replies come in the order of their commands."""

    client: socket.socket
    server: socket.socket
    requests: Any = field(default_factory=Reader)
    replies: Any = field(default_factory=Reader)
    #: Commands without their reply, each with whether it began a round trip.
    pending: deque[tuple[str, bool]] = field(default_factory=deque)
    #: Messages come unasked from now on, so nothing is awaited.
    subscribed: bool = False


class Tap:
    """Listens on a free port of the loopback address in front of a server's port; a context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._commands: Counter[str] = Counter()
        self._trips: Counter[str] = Counter()
        self._flows: list[_Flow] = []
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for flow in list(self._flows):
            self._close(flow)
        self._listener.close()
        self._selector.close()

    @property
    def url(self) -> str:
        """What to connect to instead of the server."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def traffic(self) -> Traffic:
        """All that was sent so far."""
        with self._lock:
            return Traffic(self._commands.copy(), self._trips.copy())

    def waits(self) -> bool:
        """Whether a worker waits for a ticket just now."""
        with self._lock:
            return any(flow.pending and flow.pending[-1][0] == POP for flow in self._flows)

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass_on(key.data, key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        flow = _Flow(client, socket.create_connection(("127.0.0.1", self._port)))
        for end in (flow.client, flow.server):
            # Requests and replies are small, and each is awaited.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, flow)
        self._flows.append(flow)

    def _pass_on(self, flow: _Flow, end: Any) -> None:
        if flow not in self._flows:
            return
        try:
            data = end.recv(_RECEIVE_BYTES)
            # Counted before it is passed on: whoever has the reply finds it counted.
            with self._lock:
                if end is flow.client:
                    self._sent(flow, data)
                else:
                    self._answered(flow, data)
            (flow.server if end is flow.client else flow.client).sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(flow)

    def _sent(self, flow: _Flow, data: bytes) -> None:
        flow.requests.feed(data)
        while (request := flow.requests.gets()) is not False:
            name = _name_of(request)
            begins = not flow.pending
            self._commands[name] += 1
            self._trips[name] += begins
            flow.subscribed |= "SUBSCRIBE" in name
            if not flow.subscribed:
                flow.pending.append((name, begins))

    def _answered(self, flow: _Flow, data: bytes) -> None:
        if flow.subscribed:
            return
        flow.replies.feed(data)
        while (reply := flow.replies.gets()) is not False:
            if isinstance(reply, PushNotification) or not flow.pending:
                continue
            name, begins = flow.pending.popleft()
            if name == POP and reply is None:
                for counter, count in ((self._commands, 1), (self._trips, int(begins))):
                    counter[POP] -= count
                    counter[IDLE_POP] += count

    def _close(self, flow: _Flow) -> None:
        self._flows.remove(flow)
        for end in (flow.client, flow.server):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()


def _name_of(request: Any) -> str:
    name, *rest = (bytes(part) for part in request[:2])
    command = name.decode().upper()
    if command == "EVALSHA":
        # Kombu has a script of its own, which keeps the command's name.
        return script_names().get(rest[0].decode(), command)
    if command == "PUBLISH" and _EVENTS in rest[0]:
        return TASK_EVENTS if _TASK_EVENTS in rest[0] else HEARTBEAT
    return command


@cache
def script_names() -> dict[str, str]:
    """Names of our scripts by what EVALSHA takes."""
    names = [file.name.removesuffix(".lua") for file in files("ccs_broker").joinpath("lua").iterdir()]
    return {script(name).sha: name for name in names if not name.startswith("lib_")}
