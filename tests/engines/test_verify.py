"""`verify` on real engines in their processes: a tiny model, and the prepared ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccs_workers.models import load_model_file
from ccs_workers.verify import VerifyOptions, verify
from ccs_workers.verify.records import Way
from tests.engines.tiny import build, spec_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_a_tiny_text_model_is_the_same_in_every_way(tmp_path):
    spec = spec_of(build("llama", tmp_path, context=512), options={"kv_tokens": 4096})
    report = verify([spec], VerifyOptions(jobs=8, neighbours=8))
    assert report.ok, report.models[0].findings
    (model,) = report.models
    assert (model.changed, model.leaks, model.dtype) == (0, 0, "float32")
    ways = {way.way: way for way in model.ways}
    assert ways[Way.RESUMED].cuts >= 5
    assert ways[Way.KILLED].cuts >= 1


def test_half_precision_is_counted(tmp_path):
    spec = spec_of(build("llama", tmp_path, context=512), dtype="bfloat16", options={"kv_tokens": 4096})
    report = verify([spec], VerifyOptions(jobs=3, neighbours=4))
    (model,) = report.models
    assert report.ok, model.findings
    assert not model.promised
    assert model.dtype == "bfloat16"


def test_the_prepared_models_together(models_dir):
    specs = [replace(spec, device="cpu") for spec in load_model_file(models_dir / "models.toml").specs]
    report = verify(specs, VerifyOptions(jobs=1, neighbours=2))
    assert report.ok, [model.findings for model in report.models]
    assert {model.modality for model in report.models} == {"text", "audio", "vision"}
    assert all(model.ways[-1].way is Way.TOGETHER for model in report.models)
