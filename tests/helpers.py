"""What many tests need: waiting on a condition, processes, and the keys that may live for ever."""

from __future__ import annotations

import fnmatch
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis

    from ccs_broker.server import EmbeddedServer

T = TypeVar("T")

#: Keys that may stand without a time to live, as shell patterns; each needs its reason.
PERMANENT_KEYS: Final[dict[str, str]] = {
    "_kombu.binding*": "Kombu's exchange bindings, one small set an exchange",
    "ccs:weights": "an operator's setting, of a bounded number of tenants",
}


def wait_until(predicate: Callable[[], T], timeout_s: float = 10.0, message: str = "") -> T:
    """Return the first truthy value of ``predicate``; fail the test when none came in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s in vain: {message or predicate}")
        time.sleep(0.01)
    return value


def process_runs(pid: int) -> bool:
    """Whether a process of that id runs; one that has ended and was not collected doesn't."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """A child process with its output as text, killed at the end if it still runs."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    """A server that answers nothing while the block runs, and then all that it was asked."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def leaked_keys(client: redis.Redis) -> list[str]:
    """The keys that never expire and are not declared in ``PERMANENT_KEYS``, in order."""
    keys = [key if isinstance(key, bytes) else key.encode() for key in client.scan_iter(count=1000)]
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.ttl(key)
        lives = pipe.execute()
    lasting = [key.decode(errors="replace") for key, ttl in zip(keys, lives, strict=True) if ttl == -1]
    return sorted(
        key for key in lasting if not any(fnmatch.fnmatchcase(key, pattern) for pattern in PERMANENT_KEYS)
    )
