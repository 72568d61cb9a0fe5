"""The quick check of a model's folder, without torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from ccs_broker.contract import Modality
from ccs_workers.models import ModelSpec, ProbeResult, check
from ccs_workers.models.catalog import load_catalog
from ccs_workers.models.manifest import Manifest

if TYPE_CHECKING:
    from pathlib import Path


def spec(**place) -> ModelSpec:
    return ModelSpec(alias="m", modality=Modality.TEXT, engine="text", **place)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float16)}, folder / "model.safetensors")
    return folder


def test_a_sound_folder(folder):
    report = check(spec(path=folder))
    assert report.ok
    assert (report.alias, report.folder, report.parameters) == ("m", folder, 10)
    assert report.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert report.seconds > 0


def test_a_weightless_engine_needs_no_folder():
    report = check(ModelSpec(alias="s", modality=Modality.TEXT, engine="simulated"))
    assert (report.ok, report.folder, report.parameters) == (True, None, 0)


def test_a_missing_folder_says_how_to_get_it(tmp_path):
    report = check(spec(path=tmp_path / "nowhere"))
    assert report.faults == (
        f"there is no folder {tmp_path / 'nowhere'}; 'ccs models prepare' makes those of the catalog",
    )


@pytest.mark.parametrize("hub", ["nobody/has-this-model", "not a hub id"])
def test_a_hub_model_must_be_cached(monkeypatch, tmp_path, hub):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    report = check(spec(hub=hub))
    assert [hub in fault and "local hub cache" in fault for fault in report.faults] == [True]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no .safetensors file"),
        (lambda folder: cut(folder / "model.safetensors"), "model.safetensors can't be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors can't be read"),
        (lambda folder: (folder / "x.safetensors.index.json").write_text("[]"), "can't be read as an index"),
        (
            lambda folder: (folder / "x.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
            ),
            "model-2.safetensors is missing",
        ),
    ],
)
def test_damage_is_named(folder, damage, complaint):
    damage(folder)
    report = check(spec(path=folder))
    assert not report.ok
    assert [fault for fault in report.faults if complaint in fault]


def test_a_prepared_folder_is_compared_with_its_manifest(folder):
    Manifest.describe(folder, load_catalog().get("smollm2")).write(folder)
    assert check(spec(path=folder)).ok
    (folder / "config.json").write_text("{ }")
    assert check(spec(path=folder)).faults == ("config.json has 3 bytes instead of 2",)


def test_a_quick_check_asks_no_probe(folder):
    def probe(_: ModelSpec) -> ProbeResult:
        raise AssertionError

    assert check(spec(path=folder), probe=probe).probe is None
