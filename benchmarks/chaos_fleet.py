"""The workers of a chaos run: started, watched, replaced; whoever ends without being told to is noted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import psutil
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.workers import launch, node_of, report_key, says_ready, worker_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

#: Seconds between two looks at all workers.
_WATCH_EVERY_S: Final = 0.1
#: Seconds that a worker has to end after SIGTERM.
_END_LIMIT_S: Final = 20.0
_HOST_MODULE: Final = "ccs_workers.engines.host"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """How a kind of worker is started, and how it is seen to be ready."""

    command: Callable[[str], list[str]]
    #: Key of the server that a ready worker writes, from its node name; and whether its value says so.
    ready_key: Callable[[str], str]
    is_ready: Callable[[bytes], bool]
    environment: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Member:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    since: float
    state: Literal["starting", "ready", "frozen", "leaving", "gone"] = "starting"
    told_at: float = 0.0

    @property
    def node(self) -> str:
        """Its name in events."""
        return node_of(self.name)


class Fleet:
    """Keeps a number of workers running. The faults call it from one thread; a thread of its own watches."""

    def __init__(self, url: str, kind: WorkerKind, folder: Path, size: int) -> None:
        self._redis = Redis.from_url(url, socket_timeout=2.0)
        self._kind = kind
        self._folder = folder
        self._size = size
        self._count = 0
        self._members: list[Member] = []
        self._engines: dict[int, float] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="chaos-fleet", daemon=True)
        #: What went wrong with workers by itself, in words.
        self.complaints: list[str] = []
        self.started = 0

    def start(self) -> None:
        """Start the workers and return when all are ready."""
        self._watcher.start()
        deadline = time.monotonic() + 120
        while len(self.healthy()) < self._size:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workers did not start: {self._tails()}")
            time.sleep(0.05)

    def healthy(self) -> list[Member]:
        """Workers that consume, as far as one can see."""
        with self._lock:
            return [member for member in self._members if member.state == "ready"]

    def kill(self, member: Member) -> None:
        """SIGKILL; its engines see their pipes close."""
        self._leave(member)
        member.process.kill()

    def terminate(self, member: Member) -> None:
        """SIGTERM, once."""
        self._leave(member)
        member.process.send_signal(signal.SIGTERM)

    def freeze(self, member: Member) -> None:
        """SIGSTOP; :meth:`thaw` goes on."""
        with self._lock:
            member.state = "frozen"
        member.process.send_signal(signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        """SIGCONT."""
        member.process.send_signal(signal.SIGCONT)
        with self._lock:
            if member.state == "frozen":
                member.state = "ready"

    def kill_engine(self, member: Member, pick: Callable[[list[int]], int]) -> bool:
        """SIGKILL one engine process of a worker; False if it has none just now."""
        engines = self._engines_of(member)
        if not engines:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pick(sorted(engines)), signal.SIGKILL)
        return True

    def stop(self) -> None:
        """Tell all workers to stop, and see that they and their engines are gone."""
        self._closing.set()
        self._watcher.join()
        for member in self._members:
            if member.state == "frozen":
                self.thaw(member)
            if member.state not in {"leaving", "gone"}:
                self.terminate(member)
        for member in self._members:
            self._await_end(member)
        self._redis.close()
        time.sleep(0.5)
        left = [pid for pid, born in self._engines.items() if _runs(pid, born)]
        if left:
            self.complaints.append(f"{len(left)} engine processes outlived their workers")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _await_end(self, member: Member) -> None:
        try:
            status = member.process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._hung(member)
            return
        self._ended(member, status)

    def _leave(self, member: Member) -> None:
        self._engines_of(member)
        with self._lock:
            member.state, member.told_at = "leaving", time.monotonic()

    def _engines_of(self, member: Member) -> list[int]:
        try:
            children = psutil.Process(member.process.pid).children()
            hosts = [child for child in children if _HOST_MODULE in child.cmdline()]
            self._engines |= {child.pid: child.create_time() for child in hosts}
        except psutil.Error:
            return []
        return [child.pid for child in hosts]

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_EVERY_S):
            with self._lock:
                for member in self._members:
                    self._look(member)
                self._members = [member for member in self._members if member.state != "gone"]
                staying = sum(member.state != "leaving" for member in self._members)
                for _ in range(self._size - staying):
                    self._members.append(self._launch())

    def _look(self, member: Member) -> None:
        status = member.process.poll()
        if status is not None:
            self._ended(member, status)
        elif member.state == "leaving" and time.monotonic() > member.told_at + _END_LIMIT_S:
            self._hung(member)
        elif member.state == "starting":
            with contextlib.suppress(RedisError, OSError):
                found = self._redis.get(self._kind.ready_key(member.node))
                if found is not None and self._kind.is_ready(found):  # type: ignore[arg-type]
                    member.state = "ready"

    def _ended(self, member: Member, status: int) -> None:
        if member.state == "gone":
            return
        # A worker that finds no server at its start says so and ends; that is no fault, and it is started again.
        if member.state in {"ready", "frozen"} or (member.state == "leaving" and status not in {0, -9}):
            self.complaints.append(f"{member.name} ended with status {status}: {self._tail(member)}")
        member.state = "gone"

    def _hung(self, member: Member) -> None:
        self.complaints.append(
            f"{member.name} did not end in {_END_LIMIT_S:.0f} s after SIGTERM: {self._tail(member)}"
        )
        member.process.kill()
        member.process.wait()
        member.state = "gone"

    def _launch(self) -> Member:
        self._count += 1
        self.started += 1
        name = f"chaos-{self._count}"
        log = self._folder / f"{name}.log"
        process = launch(self._kind.command(name), log, self._kind.environment)
        return Member(name=name, process=process, log=log, since=time.monotonic())

    @staticmethod
    def _tail(member: Member) -> str:
        return " / ".join(member.log.read_text(errors="replace").splitlines()[-3:])

    def _tails(self) -> list[str]:
        return [self._tail(member) for member in self._members]


def ccs_worker(url: str, models: Path, slots: int, environment: Mapping[str, str]) -> WorkerKind:
    """``ccs worker``, ready when its own report says so."""

    return WorkerKind(
        command=lambda name: worker_command(url, models, slots, name),
        ready_key=report_key,
        is_ready=says_ready,
        environment=environment,
    )


def _runs(pid: int, born: float) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return bool(process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE)
    return False
