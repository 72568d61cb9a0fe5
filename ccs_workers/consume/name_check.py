"""Sees to it that no two live workers have one name: they would share a row, a report and their claims' owner."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from ccs_broker import topology
from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

__all__ = ["require_free_name"]

_LOOK_S: Final = 0.1
#: Waited beyond the report's life for the server to drop it.
_MARGIN_S: Final = 1.0
#: What Redis answers for the time left of a key that isn't there.
_NO_KEY: Final = -2


def require_free_name(redis: Redis, name: str, ttl_s: float, say: Callable[[str], None]) -> None:
    """Return once no other live worker has this name, at once or after the last report of a dead one has expired.

    A server that doesn't answer tells nothing, so the name is taken for free.

    Args:
        redis: a client of the server.
        name: the node name, ``NAME@HOST``.
        ttl_s: how long a report outlives its worker at most.
        say: is told that there is something to wait for.

    Raises:
        ConfigurationError: another process keeps reporting under this name.
    """
    try:
        other = _report(redis, name)
        if other is None or _has_ended(other):
            return
        who = f"process {other.get('pid')} on {other.get('host')}"
        say(f"{who} was worker {name} moments ago; waiting up to {ttl_s:g} s to see whether it still is")
        if _goes_on(redis, topology.WORKER + name, ttl_s + _MARGIN_S):
            raise ConfigurationError(
                f"a worker of the name {name} is alive: {who}; stop it, or give this one another --name"
            )
    except (RedisError, OSError):
        return


def _report(redis: Redis, name: str) -> dict[str, Any] | None:
    found: Any = redis.get(topology.WORKER + name)
    try:
        report = json.loads(found) if found else None
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _has_ended(report: dict[str, Any]) -> bool:
    """Whether its process was on this machine and is gone; one of our own id, in a container, is for time to tell."""
    pid = report.get("pid")
    if report.get("host") != platform.node() or not isinstance(pid, int) or pid in {0, os.getpid()}:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        # Ended, but not collected yet by who started it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _goes_on(redis: Redis, key: str, limit_s: float) -> bool:
    """Wait until the report is renewed or has expired; whether somebody renews it."""
    until = time.monotonic() + limit_s
    last_ms: Any = redis.pttl(key)
    while last_ms != _NO_KEY and time.monotonic() < until:
        time.sleep(_LOOK_S)
        left_ms: Any = redis.pttl(key)
        if left_ms > last_ms:
            return True
        last_ms = left_ms
    return bool(last_ms != _NO_KEY)
