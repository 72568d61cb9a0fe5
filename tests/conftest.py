"""Servers for the tests: each xdist worker starts its own, on free ports, and ends it.

A test marked ``redis`` runs once on each kind of server; any other test that asks for one runs on the first
kind. A missing kind is skipped on a developer's machine and fails where ``CI=true``.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from tests.helpers import leaked_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER_KINDS = ("valkey", "redis")
UNIT_TESTS = Path(__file__).parent / "unit"

# Test processes and their engines share few cores; many threads each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a terminal can do decides how tables and panels look; tests of these make a console of their own.
os.environ["TERM"] = "xterm-256color"
for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
    os.environ.pop(name, None)
# Started in the background, a shell's children ignore Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_kind" in metafunc.fixturenames:
        everywhere = metafunc.definition.get_closest_marker("redis") is not None
        kinds = SERVER_KINDS if everywhere else SERVER_KINDS[:1]
        metafunc.parametrize("server_kind", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy and not _has_cuda_device():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
    for item in items:
        if UNIT_TESTS in item.path.parents and "server_kind" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid}: a unit test runs without a server")


def _has_cuda_device() -> bool:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU" in listing.stdout


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> str:
    """``valkey`` or ``redis``, and surely on this machine."""
    kind: str = request.param
    if kind not in server_binaries():
        absent = f"no {kind} server on this machine"
        if os.environ.get("CI") == "true":
            pytest.fail(absent)
        pytest.skip(absent)
    return kind


@pytest.fixture(scope="session")
def redis_server(server_kind: str) -> Iterator[EmbeddedServer]:
    """A server shared by the tests of this process: don't kill it and don't change its configuration."""
    with EmbeddedServer(binary=server_binaries()[server_kind]) as server:
        yield server


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of the real models that ``ccs models prepare`` made, with its model file."""
    folder = Path(os.environ.get("CCS_TEST_MODELS", "~/.cache/ccs-workers/models")).expanduser()
    if not (folder / "models.toml").is_file():
        absent = f"no prepared models in {folder}; 'make models' fetches them"
        if os.environ.get("CI") == "true":
            pytest.fail(absent)
        pytest.skip(absent)
    return folder


@pytest.fixture
def redis_url(redis_server: EmbeddedServer) -> str:
    """The shared server's address, emptied for this test."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def private_server(server_kind: str) -> Iterator[EmbeddedServer]:
    """A server of the test's own, which it may kill, restart and reconfigure."""
    with EmbeddedServer(binary=server_binaries()[server_kind]) as server:
        yield server


@pytest.fixture
def no_key_leaks(redis_url: str) -> Iterator[None]:
    """Fail the test that leaves a key without a time to live behind; see ``PERMANENT_KEYS``."""
    yield
    with redis.Redis.from_url(redis_url) as client:
        leaked = leaked_keys(client)
    assert not leaked, f"keys that never expire: {leaked[:20]}"
