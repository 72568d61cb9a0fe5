"""Counts what scripts call inside, from the server's ``MONITOR``: a script's own commands follow it, one by one."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Self

from redis import Redis

from benchmarks.tap import script_names

if TYPE_CHECKING:
    from types import TracebackType

_LOOK_EVERY_S: Final = 0.1
_LAST_LIMIT_S: Final = 60.0


class Monitor:
    """Listens while it is open. A context manager; :attr:`inside` is complete once it is closed."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url, socket_timeout=_LAST_LIMIT_S)
        self._mark = uuid.uuid4().hex
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        #: The commands inside each call of a script, call after call, by script.
        self.inside: dict[str, list[int]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listening.wait(_LAST_LIMIT_S):
            raise RuntimeError("the server lets nobody monitor it")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.echo(self._mark)
        self._thread.join(_LAST_LIMIT_S)
        self._redis.close()

    def _run(self) -> None:
        names = script_names()
        script, count = "", 0
        with self._redis.monitor() as monitor:
            self._listening.set()
            while True:
                seen = monitor.next_command()
                if seen["client_type"] == "lua":
                    count += 1
                    continue
                # A call of a script that the server doesn't know yet comes to nothing, and is repeated.
                if script and count:
                    self.inside[script].append(count)
                command, _, rest = seen["command"].partition(" ")
                if rest.strip('"') == self._mark:
                    return
                script = names.get(rest.split(" ", 1)[0].strip('"'), "") if command == "EVALSHA" else ""
                count = 0
