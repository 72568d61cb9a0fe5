"""What the README tells people to type works as it stands: each block that can run here, on the real models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccs_broker import Client
from ccs_broker.server import EmbeddedServer
from tests.workers import worker

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
URL = "redis://127.0.0.1:6379/0"
PAGE_LINE = "HARBOR STREET BAKERY"
CLIP_WORDS = "john dashwood had then leisure to consider"

pytestmark = pytest.mark.engines


def block(language: str, holding: str) -> str:
    """The one code block of the README in this language that holds a phrase."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holding in text]
    assert len(found) == 1, f"{len(found)} blocks hold {holding!r}"
    return str(found[0])


@pytest.fixture(scope="module")
def url(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a worker that serves the three prepared models."""
    models = tmp_path_factory.mktemp("readme") / "models.toml"
    text = (models_dir / "models.toml").read_text()
    models.write_text(re.sub(r'path = "(.*)"', lambda match: f'path = "{models_dir / match[1]}"', text))
    with EmbeddedServer() as server, worker(server.url, models, slots=8, timeout_s=110):
        yield server.url


def run(command: list[str], url: str) -> str:
    """Output of a command that must succeed, with `ccs` and `celery` on its path."""
    scripts = sysconfig.get_path("scripts")
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CCS_REDIS_URL": url, "PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_submitting_from_the_shell(url: str) -> None:
    shown = run(["bash", "-euc", block("sh", "ccs submit text")], url)
    assert "Paris" in shown
    assert PAGE_LINE in shown
    assert CLIP_WORDS in shown.lower()
    assert "ccs.text" in shown


def test_submitting_from_python(url: str) -> None:
    shown = run([sys.executable, "-c", block("python", "job = client.submit(")], url)
    assert "1 queued" in shown
    assert "succeeded The capital of France is Paris." in shown


def test_a_pipeline_from_python(url: str) -> None:
    shown = run([sys.executable, "-c", block("python", "client.pipeline(")], url)
    steps = {line.split()[0] for line in shown.splitlines() if " delta " in line}
    assert steps == {"heard", "seen", "told"}
    assert PAGE_LINE in shown
    assert CLIP_WORDS in shown.splitlines()[-1].lower()


def test_submitting_from_a_plain_celery_producer(url: str) -> None:
    code = block("python", "send_task")
    assert URL in code
    assert "Paris" in run([sys.executable, "-W", "error", "-c", code.replace(URL, url)], url)


def test_the_smallest_model_file_is_one(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(block("toml", "simulated"))
    with EmbeddedServer() as server, worker(server.url, models):
        assert "simulated" in run(["ccs", "workers", "--json"], server.url)
        run(["ccs", "submit", "text", "hello", "--wait"], server.url)


def test_inspecting_a_worker(url: str) -> None:
    assert "celery -A ccs_workers inspect active" in README
    assert "OK" in run(["celery", "-A", "ccs_workers", "inspect", "active"], url)


def test_the_make_targets_it_names_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"make (demo|test|bench|install|check|models|[a-z]+)\b", README))
    assert {"demo", "test", "bench"} <= named
    assert {name for name in named if name in {"demo", "test", "bench", "models", "check"}} <= set(targets)


def test_a_fusion_job_on_the_real_models(url: str) -> None:
    samples = ROOT / "ccs_workers" / "samples"
    with Client(url) as client:
        job = client.submit(
            "fusion",
            prompt="What is this?",
            images=samples / "page.png",
            audio=samples / "clip.wav",
            max_new_tokens=16,
        )
        outcome = job.result(timeout=100)
        assert outcome.ok
        assert outcome.text
        steps = {name: client.job(f"{job.id}-{name}").result(5) for name in ("seen", "heard", "answer")}
    assert PAGE_LINE in steps["seen"].text
    assert CLIP_WORDS in steps["heard"].text.lower()
    # The text model was told what was read, heard and labeled.
    words = len(f"{steps['seen'].text} {steps['heard'].text}".split())
    assert steps["answer"].usage.prompt_tokens > words
