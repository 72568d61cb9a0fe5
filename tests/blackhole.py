"""A way to the server that can go silent: what is connected stays so and hears nothing more, new connections work."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 65536


class Blackhole:
    """Forwards TCP connections from a free port to the server of a URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._lose_after: bytes | None = None
        self.url = parts._replace(netloc=f"127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            pair = _Pair(self, near, socket.create_connection(self._target))
            with self._lock:
                self._pairs.append(pair)
            for source, sink in ((pair.near, pair.far), (pair.far, pair.near)):
                threading.Thread(target=pair.pump, args=(source, sink), daemon=True).start()

    def go_silent(self) -> int:
        """Forward nothing more of the connections there are, nor close them; returns how many that hits."""
        with self._lock:
            silenced = [pair for pair in self._pairs if not pair.silent and not pair.closed]
        for pair in silenced:
            pair.silent = True
        return len(silenced)

    def lose_reply_to(self, request: bytes) -> None:
        """The next request with these bytes reaches the server, and then its connection breaks."""
        with self._lock:
            self._lose_after = request

    @property
    def lost(self) -> bool:
        """True once that has happened."""
        return self._lose_after is None

    def is_to_be_lost(self, data: bytes) -> bool:
        """Whether this is that request; true once."""
        with self._lock:
            found = self._lose_after is not None and self._lose_after in data
            if found:
                self._lose_after = None
            return found

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        with self._lock:
            for pair in self._pairs:
                pair.close()


class _Pair:
    """One connection: the end towards the worker, and the one towards the server."""

    def __init__(self, hole: Blackhole, near: socket.socket, far: socket.socket) -> None:
        self._hole = hole
        self.near = near
        self.far = far
        self.silent = False
        self.closed = False

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Forward one direction until the connection ends."""
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if self.silent:
                    continue
                if source is self.near and self._hole.is_to_be_lost(data):
                    # The reply must find nobody.
                    self.near.shutdown(socket.SHUT_RDWR)
                sink.sendall(data)
        if not self.silent:
            self.close()

    def close(self) -> None:
        """Close both ends."""
        self.closed = True
        for end in (self.near, self.far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def blackhole(url: str) -> Iterator[Blackhole]:
    """A way to a server, closed at the end."""
    hole = Blackhole(url)
    try:
        yield hole
    finally:
        hole.close()
