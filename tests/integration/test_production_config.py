"""The configuration and the roles for production, on a real server started as a deployment starts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
import yaml
from celery import Celery
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from ccs_broker.server import free_port
from ccs_broker.server_binary import server_binaries
from tests.helpers import running, wait_until
from tests.source import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = ("producer", "worker", "monitor", "operator")


@pytest.fixture(scope="module")
def deployed_port(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a server that ``deploy/redis-start.sh`` started; each role's password is its name."""
    folder = tmp_path_factory.mktemp("deployed")
    os.symlink(server_binaries()[server_kind], folder / "redis-server")
    port = free_port()
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CCS_ACL_FILE": str(folder / "users.acl"),
        **{f"CCS_{role.upper()}_PASSWORD": role for role in ROLES},
    }
    command = [
        ROOT / "deploy" / "redis-start.sh",
        "--port",
        str(port),
        "--dir",
        str(folder),
        "--logfile",
        "log",
    ]
    with running(command, env=environment) as server:
        wait_until(lambda: server.poll() is not None or _answers(port), message="the server answers")
        assert server.poll() is None, (folder / "log").read_text()
        yield port


def _answers(port: int) -> bool:
    try:
        with login(port, "operator") as client:
            return bool(client.ping())
    except RedisError:
        return False


def login(port: int, role: str | None) -> redis.Redis:
    return redis.Redis(
        host="127.0.0.1",
        port=port,
        username=role,
        password=role,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


def celery_app(port: int, role: str) -> Celery:
    url = f"redis://{role}:{role}@127.0.0.1:{port}/0"
    return Celery("roles", broker=url, backend=url, set_as_current=False)


@pytest.mark.redis
def test_it_evicts_nothing_and_survives_a_restart(deployed_port: int):
    with login(deployed_port, "operator") as client:
        settings = client.config_get(
            "maxmemory-policy", "appendonly", "appendfsync", "save", "protected-mode"
        )
        limits = client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
    assert settings == {
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "protected-mode": "yes",
    }
    assert "pubsub 33554432 8388608 60" in limits


@pytest.mark.redis
def test_nobody_gets_in_without_a_password(deployed_port: int):
    with login(deployed_port, None) as client, pytest.raises(AuthenticationError):
        client.ping()
    with pytest.raises(AuthenticationError), login(deployed_port, "producer") as client:
        client.auth("wrong", "producer")


@pytest.mark.redis
@pytest.mark.parametrize("role", ["producer", "worker", "monitor"])
def test_no_role_may_flush_list_or_configure(deployed_port: int, role: str):
    forbidden = ["FLUSHALL", "KEYS *", "CONFIG GET *", "CONFIG SET maxmemory 0", "SCRIPT FLUSH", "ACL LIST"]
    with login(deployed_port, role) as client:
        assert client.info("memory")["maxmemory_policy"] == "noeviction"
        for command in [*forbidden, "MODULE LIST", "SHUTDOWN NOSAVE", "MONITOR", "GET somebody-elses-key"]:
            with pytest.raises(NoPermissionError):
                client.execute_command(*command.split())


@pytest.mark.redis
@pytest.mark.parametrize("role", ["producer", "worker"])
def test_producer_and_worker_write_the_ledger_through_scripts(deployed_port: int, role: str):
    script = """
        local now = redis.call("TIME")
        redis.call("HSET", "ccs:job:1", "state", "waiting")
        redis.call("ZADD", "ccs:waiting:ccs.text", now[1], "1")
        redis.call("LPUSH", "ccs.text:1", "ticket")
        redis.call("XADD", "ccs:log:1", "1-0", "kind", "queued")
        redis.call("PUBLISH", "ccs:events:1", "{}")
        return redis.call("DEL", "ccs:job:1", "ccs:waiting:ccs.text", "ccs.text:1", "ccs:log:1")
    """
    with login(deployed_port, role) as client, client.pubsub() as bell:
        bell.subscribe("ccs:events:1")
        assert client.eval(script, 0) == 4
        bell.subscribe("somebody-elses-channel")
        with pytest.raises(NoPermissionError):
            wait_until(lambda: bell.get_message() and False)


@pytest.mark.redis
def test_the_monitor_reads_but_does_not_write(deployed_port: int):
    with login(deployed_port, "worker") as worker:
        worker.lpush("ccs.text:1", "ticket")
    with login(deployed_port, "monitor") as monitor:
        assert monitor.llen("ccs.text:1") == 1
        for key in ("ccs.text:1", "ccs:job:1", "celery-task-meta-1"):
            with pytest.raises(NoPermissionError):
                monitor.delete(key)
    with login(deployed_port, "worker") as worker:
        assert worker.delete("ccs.text:1") == 1


@pytest.mark.redis
def test_celery_works_with_the_roles(deployed_port: int):
    """A producer sends and reads results; a monitor inspects and hears events; all by stock Celery."""
    with celery_app(deployed_port, "producer") as producer:
        sent = producer.send_task("ccs.run", args=[{}], queue="ccs.text", ignore_result=True)
        assert producer.AsyncResult(sent.id).state == "PENDING"
    with celery_app(deployed_port, "worker") as worker, worker.connection_for_read() as connection:
        worker.backend.store_result(sent.id, {"answer": 1}, "SUCCESS")
        message = connection.default_channel.basic_get("ccs.text")
        assert message.headers["id"] == sent.id
        message.ack()
    with celery_app(deployed_port, "producer") as producer:
        assert producer.AsyncResult(sent.id).get(timeout=5) == {"answer": 1}
    with celery_app(deployed_port, "monitor") as monitor, monitor.connection_for_read() as connection:
        assert monitor.control.inspect(timeout=0.2).ping() is None
        receiver = monitor.events.Receiver(connection, handlers={})
        with receiver.consumer_context():
            pass


def test_a_missing_password_stops_the_start(tmp_path: Path):
    environment = {"PATH": os.environ["PATH"], "CCS_ACL_FILE": str(tmp_path / "users.acl")}
    with running([ROOT / "deploy" / "redis-start.sh"], env=environment) as server:
        assert server.wait(10) != 0


def test_the_compose_file_names_files_that_exist_and_publishes_on_loopback_only():
    composition = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = composition["services"]
    assert set(services) == {"redis", "worker", "flower"}
    mounted = [volume.split(":")[0] for volume in services["redis"]["volumes"] if volume.startswith("./")]
    assert mounted
    assert all((ROOT / path).is_file() for path in [*mounted, services["worker"]["build"]["dockerfile"]])
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_procfile_starts_programs_that_exist():
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    processes = dict(line.split(": ", 1) for line in lines)
    assert set(processes) == {"redis", "worker", "flower"}
    programs = [processes[name].split()[0] for name in ("worker", "flower")]
    assert all(Path(sys.executable).with_name(program).is_file() for program in programs)
