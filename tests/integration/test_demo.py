"""The demo with its real models: every modality answers rightly, and nothing is left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import psutil
import pytest

from tests.helpers import wait_until

MARK = "CCS_TEST_DEMO_MARK"
#: Three times what a second run may take on an idle machine: tests share theirs.
LIMIT_S = 180.0
#: What is said in the clip and stands on the page; see the samples' SOURCES.md and draw_page.py.
CLIP_WORDS = "john dashwood had then leisure to consider how much there might be prudently in his power"
PAGE_LINES = ("HARBOR STREET BAKERY", "12 sourdough loaves at 4.50", "Total due: 78.00 EUR")


def marked(mark: str) -> list[psutil.Process]:
    """Processes that were started, however indirectly, with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.engines
@pytest.mark.timeout(LIMIT_S + 30)
def test_the_demo_answers_rightly_in_every_modality_and_stops_everything(models_dir):
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CCS_")}
    shown = subprocess.run(
        [
            sys.executable,
            "-m",
            "ccs_broker.cli",
            "demo",
            "--json",
            "--models",
            str(models_dir / "models.toml"),
        ],
        env={**environment, MARK: mark},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    wait_until(lambda: not marked(mark), message="everything that the demo started has ended")
    jobs = {job["modality"]: job for job in json.loads(shown.stdout.splitlines()[-1])["jobs"]}
    assert set(jobs) == {"text", "vision", "audio"}
    for job in jobs.values():
        assert job["state"] == "succeeded"
        assert job["events"] >= 4
        assert 0 <= job["first_output_s"] <= job["duration_s"]
    assert "Paris" in jobs["text"]["text"]
    assert set(PAGE_LINES) <= set(jobs["vision"]["text"].splitlines())
    assert CLIP_WORDS in jobs["audio"]["text"].lower()
