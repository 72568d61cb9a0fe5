"""A worker within a budget: jobs wait for memory instead of failing, and models take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import redis

from ccs_broker import Client
from tests.helpers import wait_until
from tests.workers import worker

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
[models.{alias}]
modality = "{modality}"
engine = "simulated"
weights_bytes = 400
bytes_per_job = 100
tokens_per_second = {rate}
{default}
"""


def models(folder: Path, *aliases: str, rate: int = 0, modality: str = "text") -> Path:
    path = folder / "models.toml"
    path.write_text(
        "".join(
            MODEL.format(
                alias=alias, modality=modality, rate=rate, default="default = true" * (alias == aliases[0])
            )
            for alias in aliases
        )
    )
    return path


def test_ten_times_the_memory_at_once(redis_url: str, tmp_path: Path) -> None:
    """Room for three jobs beside the model: thirty end well, never more than three at once."""
    options = ("--memory", "750")
    with (
        worker(redis_url, models(tmp_path, "a", rate=20), slots=16, options=options) as running,
        Client(redis_url) as client,
        redis.Redis.from_url(redis_url) as raw,
    ):
        jobs = [client.submit("text", prompt=str(n), max_new_tokens=4, qos="realtime") for n in range(30)]
        most = 0

        def all_ended() -> bool:
            nonlocal most
            most = max(most, raw.zcard("ccs:running"))
            return all(job.status().state.terminal for job in jobs)

        wait_until(all_ended, 60)
        assert [job.result(timeout=1).state for job in jobs] == ["succeeded"] * 30
        assert most == 3
        memory = running.report(raw)["memory"]
        assert (memory["budget"], memory["engines"][0]["fixed"]) == (750, 400)
        wait_until(lambda: running.report(raw)["memory"]["free"] == 350, 10)


def test_more_models_than_fit_are_all_served(redis_url: str, tmp_path: Path) -> None:
    with (
        worker(redis_url, models(tmp_path, "a", "b", "c"), options=("--memory", "1000")) as running,
        Client(redis_url) as client,
        redis.Redis.from_url(redis_url) as raw,
    ):
        for alias in ("a", "b", "c", "a"):
            outcome = client.submit("text", prompt="x", model=alias, max_new_tokens=2).result(timeout=60)
            assert (outcome.state, outcome.model) == ("succeeded", alias)
        held = running.report(raw)["memory"]
        assert held["budget"] == 1000
        wait_until(lambda: len(running.report(raw)["memory"]["engines"]) == 2, 10)
        listed = subprocess.run(
            [sys.executable, "-m", "ccs_broker.cli", "workers", "--url", redis_url, "--json"],
            capture_output=True, check=True, text=True, timeout=60,
        )  # fmt: skip
        (shown,) = json.loads(listed.stdout)["workers"]
        assert {one["alias"] for one in shown["report"]["memory"]["engines"]} <= {"a", "b", "c"}
        table = subprocess.run(
            [sys.executable, "-m", "ccs_broker.cli", "workers", "--url", redis_url],
            capture_output=True, check=True, text=True, timeout=60, env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert "of 1000 B" in table.stdout
        states = {model["alias"]: model["state"] for model in running.report(raw)["models"]}
        assert sorted(states.values()) == ["declared", "ready", "ready"]


def test_a_model_that_the_memory_never_holds_is_refused_at_the_start(redis_url: str, tmp_path: Path) -> None:
    started = subprocess.run(
        [sys.executable, "-m", "ccs_broker.cli", "worker", "--url", redis_url, "--memory", "300",
         "--models", str(models(tmp_path, "a"))],
        capture_output=True, check=False, text=True, timeout=60,
    )  # fmt: skip
    assert started.returncode != 0
    assert "needs 400 bytes" in started.stderr + started.stdout
    assert "--memory" in started.stderr + started.stdout
