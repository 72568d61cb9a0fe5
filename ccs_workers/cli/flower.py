"""Flower for the local system: Celery's web page on the workers, on a free port, behind a login."""

from __future__ import annotations

import importlib.util
import secrets
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from ccs_workers.cli.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Flower", "start_flower"]

_USER: Final = "ccs"
_ANSWER_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """A Flower that has been started; it answers when ``ready`` says so."""

    child: Child
    url: str
    user: str
    password: str

    def ready(self) -> bool:
        """Whether it answers by now."""
        # Straight to the loopback address, whatever proxy the environment names.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}/healthcheck", timeout=_ANSWER_LIMIT_S) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except (OSError, urllib.error.URLError):
            return False


def start_flower(server_url: str, folder: Path) -> Flower | None:
    """Start Flower with its log and working directory in ``folder``; None where it isn't installed."""
    if importlib.util.find_spec("flower") is None:
        return None
    port, password = _free_port(), secrets.token_urlsafe(12)
    child = Child(
        "flower",
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "ccs_workers",
            "flower",
            "--address=127.0.0.1",
            f"--port={port}",
        ],
        log=folder / "flower.log",
        # In the environment, because command lines are everybody's to read.
        environment={"CCS_REDIS_URL": server_url, "FLOWER_BASIC_AUTH": f"{_USER}:{password}"},
        # Flower reads a configuration file from where it is started.
        directory=folder,
    )
    return Flower(child=child, url=f"http://127.0.0.1:{port}", user=_USER, password=password)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
