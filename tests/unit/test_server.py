"""The embedded server: it comes up, keeps what it was told to keep, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from ccs_broker import server as server_module
from ccs_broker import server_binary
from ccs_broker.errors import ConfigurationError
from ccs_broker.server import PORTS, EmbeddedServer
from ccs_broker.server_binary import find_server_binary, server_binaries
from tests.helpers import process_runs, running, wait_until

BINARIES = [pytest.param(path, id=kind) for kind, path in server_binaries().items()]
every_binary = pytest.mark.parametrize("binary", BINARIES)

PARENT = """
import os, sys, time
from ccs_broker.server import EmbeddedServer
server = EmbeddedServer(unix_socket=bool(int(sys.argv[1]))).start()
guard = server._guard.pid
child = os.fork() if sys.argv[2] == "fork" else -1
if child:
    print(server.pid, guard, child, server.directory, flush=True)
time.sleep(120)
"""


def connect(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


@every_binary
def test_starts_answers_and_stops(binary):
    with EmbeddedServer(binary=binary) as server:
        directory, pid = server.directory, server.pid
        with connect(server) as client:
            assert client.ping()
            assert client.config_get("save") == {"save": ""}
            assert client.config_get("appendonly") == {"appendonly": "no"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.info("server")["process_id"] == pid
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert server.port in PORTS
        assert server.alive
    assert not server.alive
    assert not process_runs(pid)
    assert not directory.exists()


@every_binary
def test_listens_on_the_loopback_address_only(binary):
    with EmbeddedServer(binary=binary) as server:
        listening = {c.laddr for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"}
    assert listening == {("127.0.0.1", server.port)}


@every_binary
def test_serves_a_unix_socket_and_no_port(binary):
    with EmbeddedServer(binary=binary, unix_socket=True) as server:
        with connect(server) as client:
            assert client.set("a", "b")
        path = server.directory / "server.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert not [c for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"]
        assert server.port == 0


def test_two_run_at_once_and_share_nothing():
    with EmbeddedServer() as one, EmbeddedServer() as two, connect(one) as first, connect(two) as second:
        first.set("key", "one")
        assert second.get("key") is None
        assert one.port != two.port
        assert one.directory != two.directory


@every_binary
@pytest.mark.parametrize("ending", ["kill", "restart"])
def test_a_restart_keeps_port_and_appended_data(binary, ending):
    with EmbeddedServer(binary=binary, appendonly=True, config={"appendfsync": "always"}) as server:
        with connect(server) as client:
            client.set("key", "kept")
        port, pid = server.port, server.pid
        if ending == "kill":
            server.kill()
            assert not process_runs(pid)
        server.restart()
        assert server.port == port
        assert server.pid != pid
        with connect(server) as client:
            assert client.get("key") == "kept"


def test_a_restart_without_append_only_file_starts_empty():
    with EmbeddedServer() as server:
        with connect(server) as client:
            client.set("key", "gone")
        server.restart()
        with connect(server) as client:
            assert client.get("key") is None


def test_memory_limit_and_further_directives_reach_the_server():
    wanted = {"maxmemory-policy": "allkeys-lru", "hz": "20"}
    with EmbeddedServer(maxmemory_bytes=64 << 20, config=wanted) as server, connect(server) as client:
        assert client.config_get(*wanted, "maxmemory") == {**wanted, "maxmemory": str(64 << 20)}


def test_a_password_does_not_keep_it_from_starting_and_stopping():
    with EmbeddedServer(config={"requirepass": "s3cret"}) as server:
        assert stat.S_IMODE((server.directory / "server.conf").stat().st_mode) == 0o600
        with redis.Redis(host="127.0.0.1", port=server.port, password="s3cret") as client:
            assert client.ping()
        pid = server.pid
    assert not process_runs(pid)


def test_a_given_directory_stays(tmp_path: Path):
    with EmbeddedServer(directory=tmp_path, appendonly=True) as server:
        assert server.directory == tmp_path
    assert (tmp_path / "appendonlydir").is_dir()


def test_a_taken_port_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        free = server_module.free_port()
        offers = iter([taken, taken, free])
        monkeypatch.setattr(server_module, "free_port", lambda: next(offers))
        monkeypatch.setattr(server_module, "ADMIN_TIMEOUT_S", 0.2)
        with EmbeddedServer() as server, connect(server) as client:
            assert server.port == free
            assert client.ping()


@every_binary
def test_a_frozen_server_is_ended_all_the_same(binary, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_module, "END_LIMIT_S", 0.3)
    monkeypatch.setattr(server_module, "ADMIN_TIMEOUT_S", 0.3)
    with EmbeddedServer(binary=binary) as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert not process_runs(pid)


def test_stop_is_harmless_before_the_start_and_after_the_end():
    server = EmbeddedServer()
    server.stop()
    with server:
        server.kill()
        assert not server.alive
    server.stop()
    with pytest.raises(ConfigurationError, match="has not been started"):
        _ = server.directory


@pytest.mark.parametrize("transport", ["port", "socket"])
@pytest.mark.parametrize("family", ["alone", "fork"])
def test_a_killed_parent_leaves_nothing_behind(transport, family):
    """Also while a forked child of the parent lives on with the guard's pipe in its hands."""
    arguments = ["1" if transport == "socket" else "0", family]
    with running([sys.executable, "-c", PARENT, *arguments]) as parent:
        server_pid, guard_pid, child_pid, directory = parent.stdout.readline().split()
        try:
            assert process_runs(int(server_pid))
            parent.kill()
            wait_until(lambda: not process_runs(int(server_pid)), message="the server ends with its parent")
            wait_until(lambda: not process_runs(int(guard_pid)), message="the guard ends with its parent")
            wait_until(lambda: not Path(directory).exists(), message="the temporary directory is removed")
        finally:
            if int(child_pid) > 0:
                os.kill(int(child_pid), signal.SIGKILL)


def test_an_interrupt_from_the_terminal_does_not_reach_the_server():
    script = "import sys; from ccs_broker.server import EmbeddedServer\nwith EmbeddedServer() as s:\n" + (
        "  print(s.pid, s._guard.pid, flush=True)\n  sys.stdin.read()\n"
    )
    with running([sys.executable, "-c", script], stdin=subprocess.PIPE, process_group=0) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(os.getpgid(pid) != parent.pid for pid in pids)
        os.kill(pids[1], signal.SIGINT)
        parent.stdin.close()
        assert parent.wait(10) == 0
        assert not any(process_runs(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_killed_guard_takes_the_server_with_it():
    with EmbeddedServer() as server:
        os.kill(server._guard.pid, signal.SIGKILL)
        wait_until(lambda: not process_runs(server.pid), message="the server ends with its guard")
        assert not server.alive


def test_no_server_on_the_machine_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(server_binary, "_bundled_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install ccs-workers\[demo\]"):
        find_server_binary()


def test_a_server_on_the_path_is_found_where_none_is_bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(server_binary, "_bundled_binary", lambda: None)
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server_binary() == tmp_path / "valkey-server"
    (tmp_path / "valkey-server").unlink()
    assert find_server_binary() == tmp_path / "redis-server"


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"no-such-directive": "1"}, "ended at its start"), ({"hz": "10\nport 1"}, "line break")],
)
def test_a_bad_directive_is_a_configuration_error_and_leaves_no_process(config, reason):
    server = EmbeddedServer(config=config)
    with pytest.raises(ConfigurationError, match=reason):
        server.start()
    assert not server.alive


def test_a_program_that_is_no_server_is_a_configuration_error(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="ended at its start"):
        EmbeddedServer(binary=tmp_path / "nothing").start()
