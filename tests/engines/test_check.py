"""The deep check of a model: every weight a number, and an answer that is known."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from ccs_broker.cli.group import ccs
from ccs_broker.contract import Modality
from ccs_workers.models import ModelSpec, ProbeResult, check
from ccs_workers.models.catalog import load_catalog
from ccs_workers.models.check import parameter_faults
from ccs_workers.models.manifest import Manifest

pytestmark = pytest.mark.engines


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return ModelSpec(alias="m", modality=Modality.TEXT, engine="text", path=tmp_path)


def save(spec, **tensors):
    save_file(tensors, spec.path / "model.safetensors")


def right(_: ModelSpec) -> ProbeResult:
    return ProbeResult(ok=True, detail="Paris")


def wrong(_: ModelSpec) -> ProbeResult:
    return ProbeResult(ok=False, detail="noise")


def test_sound_weights_and_a_right_answer(spec):
    save(spec, a=torch.zeros(2, 3, dtype=torch.bfloat16), ids=torch.arange(4))
    report = check(spec, deep=True, probe=right)
    assert (report.ok, report.parameters, report.probe) == (True, 10, right(spec))


def test_a_wrong_answer_is_a_fault(spec):
    save(spec, a=torch.zeros(1))
    report = check(spec, deep=True, probe=wrong)
    assert report.faults == ("one small job on it went wrong: noise",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_that_are_no_numbers_are_refused_before_any_probe(spec, bad, dtype):
    save(spec, fine=torch.ones(3), broken=torch.tensor([0.0, bad], dtype=dtype))
    assert check(spec).ok
    report = check(spec, deep=True, probe=right)
    assert report.faults == ("model.safetensors: broken holds values that are not finite",)
    assert report.probe is None


@pytest.mark.parametrize("alias", ["smollm2", "vision", "whisper-tiny-en"])
def test_a_deep_check_runs_a_job_on_each_real_model(models_dir, alias):
    command = ["models", "check", alias, "--deep", "--json", "--models", str(models_dir / "models.toml")]
    shown = CliRunner().invoke(ccs, command)
    assert shown.exit_code == 0, shown.output
    (report,) = json.loads(shown.stdout)["models"]
    assert report["ok"]
    assert "answered in" in report["probe"]["detail"]


def test_a_changed_weight_is_found_by_its_hash(spec):
    save(spec, a=torch.zeros(4))
    Manifest.describe(spec.path, load_catalog().get("smollm2")).write(spec.path)
    assert check(spec, deep=True).ok
    save(spec, a=torch.ones(4))
    assert check(spec).ok
    assert check(spec, deep=True).faults == ("model.safetensors has changed since it was prepared (sha256)",)


def test_parameters_that_were_never_loaded_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    assert parameter_faults(model.named_parameters()) == [
        "1.weight was never loaded (it lies on the meta device)",
        "1.bias was never loaded (it lies on the meta device)",
    ]
