"""`ccs verify` with real engine processes: exit statuses, table and JSON."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ccs_broker.cli.failures import exit_code_of
from ccs_workers.cli.verify import verify_command
from tests.faulty_engines import registered

MODEL = """
[models.{alias}]
modality = "{modality}"
engine = "{engine}"
path = "."
[models.{alias}.options]
tokens_per_second = 400
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call the command on models of these engines."""
    for name in ("CCS_MODELS", "CCS_HOME"):
        monkeypatch.delenv(name, raising=False)

    def call(engines: dict[str, str], *arguments: str):
        path = tmp_path / "models.toml"
        path.write_text(
            "".join(
                MODEL.format(alias=alias, modality="text", engine=name) for alias, name in engines.items()
            )
        )
        given = ["--models", str(path), "--jobs", "3", "--neighbours", "4", *arguments]
        with registered(tmp_path):
            return CliRunner().invoke(verify_command, given, standalone_mode=False)

    return call


def test_sound_models_end_with_0(run):
    ended = run({"one": "simulated", "two": "simulated"})
    assert ended.return_value == 0, ended.output
    assert "all models at once" in ended.stdout
    assert ended.stdout.count(" outputs changed, 0 leaks; 0 of 3 canaries read back") == 2
    assert "two, none on simulated: 3 jobs" in ended.stdout
    assert "one: alone again (" in ended.stderr


def test_drift_ends_with_1_and_names_job_and_place(run):
    ended = run({"sim": "drifting"})
    assert ended.return_value == 1, ended.output
    line = next(line for line in ended.stdout.splitlines() if line.startswith("changed: "))
    assert line.startswith("changed: sim, mixed batch, job '2: seeded' at character ")
    assert "'drift drift" in line


def test_a_leak_ends_with_1_and_names_whose_it_is(run):
    ended = run({"sim": "leaking", "sound": "simulated"}, "--json", "--alias", "sim")
    assert ended.return_value == 1, ended.output
    report = json.loads(ended.stdout)
    assert (report["ok"], [model["alias"] for model in report["models"]]) == (False, ["sim"])
    (model,) = report["models"]
    leaks = [finding for finding in model["findings"] if finding["kind"] == "leak"]
    assert model["leaks"] == len(leaks) > 0
    assert leaks[0]["job"] == "2: seeded"
    assert leaks[0]["detail"].startswith("the canary of 'sim ")
    assert [way["way"] for way in model["ways"]][:2] == ["alone", "alone again"]


def test_half_precision_is_not_reproducible_and_no_fault(run):
    ended = run({"sim": "drifting-half"})
    assert ended.return_value == 0, ended.output
    assert "%): not reproducible in bfloat16" in ended.stdout
    assert run({"sim": "leaking-half"}).return_value == 1


@pytest.mark.parametrize(
    "arguments", [("--alias", "nobody"), ("--jobs", "0"), ("--neighbours", "-1"), ("--dtype", "int8")]
)
def test_wrong_usage_ends_with_2(run, arguments):
    ended = run({"sim": "simulated"}, *arguments)
    assert exit_code_of(ended.exception, as_json=False) == 2


def test_a_missing_model_file_ends_with_2(tmp_path):
    ended = CliRunner().invoke(verify_command, ["--models", str(tmp_path / "no.toml")], standalone_mode=False)
    assert exit_code_of(ended.exception, as_json=False) == 2
