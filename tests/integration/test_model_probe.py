"""`ccs models check --deep`: the model is loaded in a process of its own and runs one small job."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ccs_broker.cli.group import ccs
from tests.workers import simulated_models


def check(models, *options):
    return CliRunner().invoke(ccs, ["models", "check", "--models", str(models), *options])


def test_each_modality_is_loaded_and_runs_a_job(tmp_path):
    models = simulated_models(tmp_path)
    shown = check(models, "--deep")
    assert shown.exit_code == 0, shown.output
    rows = shown.stdout.splitlines()[1:]
    assert len(rows) == 3
    assert all("ok (loaded in" in row and "answered in" in row for row in rows)
    assert "answered" not in check(models).stdout


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ('raise_on = "capital"', "ENGINE_FAILED"),
        ('crash_on = "capital"', "process ended under the job"),
        ("tokens = 0", "without a text"),
        ("nonsense = 1", "nonsense"),
    ],
)
def test_a_job_that_goes_wrong_is_a_fault(tmp_path, option, told):
    models = tmp_path / "models.toml"
    models.write_text(f'[models.m]\nmodality = "text"\nengine = "simulated"\n{option}\n')
    assert check(models).exit_code == 0
    shown = check(models, "--deep", "--json")
    assert shown.exit_code == 1
    (report,) = json.loads(shown.stdout)["models"]
    (fault,) = report["faults"]
    assert fault.startswith("one small job on it went wrong: ")
    assert told in fault
