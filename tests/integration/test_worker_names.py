"""`ccs worker` at its start: one live worker a name, and for machines nothing but JSON on standard output."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis

from ccs_broker.errors import ConfigurationError
from ccs_workers.consume.name_check import require_free_name
from tests.helpers import wait_until
from tests.workers import simulated_models, stop, worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HERE = f"w@{platform.node()}"
KEY = f"ccs:worker:{HERE}"


def command(url: str, models: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "ccs_broker.cli", "worker", "--url", url, "--models", str(models), *options
    ]  # fmt: skip


def start(arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return simulated_models(tmp_path)


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def test_a_second_live_worker_of_a_name_is_refused_and_the_first_goes_on(redis_url, models, raw):
    with worker(redis_url, models) as first:
        name = first.name.partition("@")[0]
        began = time.monotonic()
        second = start(command(redis_url, models, "--name", name, "--json"))
        assert time.monotonic() - began < 10
        assert second.returncode == 2
        error = json.loads(second.stdout)["error"]
        assert error["code"] == "CONFIGURATION"
        assert f"process {first.process.pid} on {platform.node()}" in error["message"]
        assert "waiting up to 10 s" in second.stderr
        assert first.report(raw)["pid"] == first.process.pid


def test_a_worker_that_comes_back_after_a_kill_is_not_kept_waiting(redis_url, models, raw):
    arguments = command(redis_url, models, "--name", "w")

    def is_ready(process: subprocess.Popen[bytes]) -> bool:
        report = json.loads(raw.get(KEY) or b"{}")
        return (report.get("pid"), report.get("state")) == (process.pid, "ready")

    with models.with_suffix(".log").open("wb") as log:
        first = subprocess.Popen(arguments, stdout=log, stderr=log)
        try:
            wait_until(lambda: is_ready(first), 30)
            first.send_signal(signal.SIGKILL)
            # Not collected: as a zombie it still has its process id.
            wait_until(lambda: os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), 5)
            second = subprocess.Popen(arguments, stdout=log, stderr=log)
            try:
                wait_until(lambda: is_ready(second), 30)
                assert raw.exists(KEY)
            finally:
                stop(second)
        finally:
            stop(first)
    assert "waiting up to" not in models.with_suffix(".log").read_text(errors="replace")


@pytest.mark.parametrize(
    "where", [{"host": "elsewhere", "pid": 1}, {"pid": os.getpid()}, {"pid": os.getppid()}]
)
def test_a_report_that_nobody_renews_is_waited_out(raw, where):
    raw.set(KEY, json.dumps({"host": platform.node(), **where}), px=400)
    said: list[str] = []
    require_free_name(raw, HERE, 0.4, said.append)
    assert not raw.exists(KEY)
    assert len(said) == 1


def test_a_report_of_a_process_that_has_ended_here_is_none(raw):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    raw.set(KEY, json.dumps({"host": platform.node(), "pid": ended.pid}), ex=60)
    said: list[str] = []
    require_free_name(raw, HERE, 10, said.append)
    assert said == []


def test_a_report_that_is_renewed_from_elsewhere_is_somebody_else(raw):
    report, ended = json.dumps({"host": "elsewhere", "pid": 7}), threading.Event()

    def renew() -> None:
        while not ended.wait(0.3):
            raw.set(KEY, report, px=2000)

    raw.set(KEY, report, px=2000)
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(ConfigurationError, match=f"the name {HERE} is alive: process 7 on elsewhere"):
            require_free_name(raw, HERE, 2, lambda line: None)
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("content", ["", "no json", "[]", "{}"])
def test_what_is_no_report_of_a_process_keeps_nobody_for_longer_than_it_lives(raw, content):
    raw.set(KEY, content, px=200)
    require_free_name(raw, HERE, 0.2, lambda line: None)


def test_a_server_that_is_away_says_nothing_about_names():
    with redis.Redis.from_url("redis://127.0.0.1:1/0") as nowhere:
        require_free_name(nowhere, HERE, 10, lambda line: None)


def test_for_machines_standard_output_holds_one_line_of_json_from_start_to_end(redis_url, models, raw):
    process = subprocess.Popen(
        command(redis_url, models, "--name", "w", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: b'"ready"' in (raw.get(KEY) or b""), 30)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    finally:
        stop(process)
    assert json.loads(out)["worker"]["slots"] == 16
    assert "celery@" not in out
    assert "[config]" in err
    assert "Warm shutdown" in err


@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        (("--allocation", "static", "--slots", "2"), {}, "slots"),
        ((), {"CCS_STALL_S": "soon"}, "CCS_STALL_S"),
    ],
)
def test_for_machines_an_error_of_the_configuration_is_the_only_line(
    redis_url, models, options, environment, said
):
    ended = start(command(redis_url, models, "--json", *options), **environment)
    assert ended.returncode == 2
    error = json.loads(ended.stdout)["error"]
    assert error["code"] == "CONFIGURATION"
    assert said in error["message"]
