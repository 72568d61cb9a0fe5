"""`ccs demo` and `ccs up` with simulated engines: what they start and say, and that they leave nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import psutil
import pytest

from ccs_broker.client import Client
from tests.helpers import process_runs, running, wait_until
from tests.workers import simulated_models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CCS = [sys.executable, "-m", "ccs_broker.cli"]
BASE = {name: value for name, value in os.environ.items() if not name.startswith("CCS_")}


def descendants(pid: int) -> set[psutil.Process]:
    return set(psutil.Process(pid).children(recursive=True))


def all_ended(processes: Iterable[psutil.Process]) -> bool:
    return not any(process_runs(each.pid) for each in processes)


def kinds(processes: set[psutil.Process]) -> set[str]:
    """Which of the system's parts are among these processes."""
    parts = {
        "server.conf": "server",
        "ccs_broker.cli": "worker",
        "engines.host": "engine",
        "flower": "flower",
    }
    lines = [" ".join(each.cmdline()) for each in processes]
    return {kind for word, kind in parts.items() if any(word in line for line in lines)}


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[IO[str]]:
    """Where a process writes what would go to standard error."""
    with (tmp_path / "stderr").open("w+") as file:
        yield file


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No server and no models but those of this test, and temporary folders where they can be counted."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {**BASE, "CCS_MODELS": str(simulated_models(tmp_path)), "TMPDIR": str(scratch)}


def test_demo_ends_with_0_and_its_last_line_holds_every_job(environment):
    command = [*CCS, "demo", "--json", "--no-flower", "--jobs", "2"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert shown.returncode == 0, shown.stderr
    jobs = json.loads(shown.stdout.splitlines()[-1])["jobs"]
    assert [job["modality"] for job in jobs] == ["text", "vision", "audio"] * 2
    assert len({job["id"] for job in jobs}) == 6
    for job in jobs:
        assert job["state"] == "succeeded"
        assert job["text"]
        assert job["events"] > 3
        assert 0 <= job["first_output_s"] <= job["duration_s"]
    assert "text    | [started]" in shown.stderr
    assert not os.listdir(environment["TMPDIR"])


def test_demo_on_a_given_server_starts_none(environment, redis_url):
    command = [*CCS, "demo", "--no-flower"]
    given = {**environment, "CCS_REDIS_URL": redis_url}
    shown = subprocess.run(command, env=given, capture_output=True, text=True, timeout=90, check=False)
    assert shown.returncode == 0, shown.stderr
    assert f"server  {redis_url}" in shown.stdout
    with Client(redis_url) as client:
        wait_until(lambda: not client.workers(), message="the worker has signed off")
        assert client.queues().running == 0


def test_a_worker_that_can_not_start_is_explained_by_its_log(environment, tmp_path):
    # A folder that is there but holds no model passes the look from outside.
    (tmp_path / "empty").mkdir()
    models = tmp_path / "broken.toml"
    models.write_text('[models.t]\nmodality = "text"\nengine = "text"\npath = "empty"\n')
    command = [*CCS, "demo", "--no-flower", "--models", str(models)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert shown.returncode == 1
    assert "error: WORKER_LOST: the worker has ended" in shown.stderr
    log = re.search(r"its log is (\S+)", shown.stderr)
    assert log
    assert Path(log[1]).is_file()
    assert "last lines of the worker's log" in shown.stdout


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_up_serves_until_it_is_stopped_and_leaves_nothing(environment, errors, ending):
    with running([*CCS, "up", "--json"], env=environment, stderr=errors) as system:
        said = json.loads(system.stdout.readline())
        parts = descendants(system.pid)
        try:
            assert kinds(parts) == {"server", "worker", "engine", "flower"}
            flower, url = said["flower"], said["url"]
            assert _status(f"{flower['url']}/healthcheck") == 200
            assert _status(f"{flower['url']}/api/workers") == 401
            assert "ready" in Path(said["logs"]["worker"]).read_text()
            assert Path(said["logs"]["flower"]).is_file()
            assert said["flower"]["password"] not in " ".join(" ".join(part.cmdline()) for part in parts)
            with Client(url) as client:
                assert client.submit("text", prompt="Which?").result(timeout=20).ok
            system.send_signal(ending)
            status = system.wait(30)
            wait_until(lambda: all_ended(parts), message=f"all parts end: {parts}")
        finally:
            for part in parts:
                if not all_ended([part]):
                    part.kill()
        assert status == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[ending]
        errors.seek(0)
        assert "Traceback" not in errors.read()
    if ending != signal.SIGKILL:
        assert not os.listdir(environment["TMPDIR"])


def test_up_ends_with_its_worker(environment, errors):
    with running([*CCS, "up", "--json", "--no-flower"], env=environment, stderr=errors) as system:
        json.loads(system.stdout.readline())
        parts = descendants(system.pid)
        worker = next(part for part in parts if part.cmdline()[1:3] == ["-m", "ccs_broker.cli"])
        worker.kill()
        assert system.wait(30) == 1
        assert json.loads(system.stdout.read())["error"]["code"] == "WORKER_LOST"
        wait_until(lambda: all_ended(parts), message="all parts end")


def test_up_ends_with_its_server(environment, errors):
    with running([*CCS, "up", "--json", "--no-flower"], env=environment, stderr=errors) as system:
        json.loads(system.stdout.readline())
        parts = descendants(system.pid)
        server = next(part for part in parts if part.name() in {"valkey-server", "redis-server"})
        server.kill()
        assert system.wait(30) == 1
        error = json.loads(system.stdout.read())["error"]
        assert (error["code"], "has ended" in error["message"]) == ("QUEUE_UNAVAILABLE", True)
        wait_until(lambda: all_ended(parts), message="all parts end")


def _status(url: str) -> int:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=5) as answer:
            return int(answer.status)
    except HTTPError as refused:
        with refused:
            return int(refused.code)
