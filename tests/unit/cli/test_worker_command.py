"""`ccs worker` and `ccs models` look at everything before anything is started."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ccs_broker.cli.group import ccs
from ccs_broker.errors import ConfigurationError
from ccs_workers.cli.model_files import prepared_model_file
from ccs_workers.cli.worker import require_models
from ccs_workers.settings import parse_slots, worker_settings_from_environment

NOWHERE = "redis://127.0.0.1:1/0"
SIMULATED = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
[models.sim-audio]
modality = "audio"
engine = "simulated"
"""


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.toml"
    path.write_text(SIMULATED)
    return path


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    for name in ("CCS_REDIS_URL", "CCS_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CCS_HOME", str(tmp_path / "home"))


def invoke(*arguments: object):
    return CliRunner().invoke(ccs, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--modalities", "text,smell", "text, vision, audio, fusion"),
        ("--modalities", ",", "modalities"),
        ("--slots", "0", "should be a whole number from 1 to 4096, not 0"),
        ("--device", "tpu", "cuda:1"),
        ("--allocation", "fair", "'dynamic', 'static'"),
        ("--name", "-x y", "64 letters"),
        ("--log-level", "loud", "'debug'"),
    ],
)
def test_a_wrong_option_is_wrong_usage(option, value, complaint):
    run = invoke("worker", option, value)
    assert run.exit_code == 2
    assert complaint in run.stderr


def test_a_server_must_be_named_and_must_answer(models):
    run = invoke("worker", "--models", models)
    assert run.exit_code == 2
    assert "error: CONFIGURATION: no server given" in run.stderr
    run = invoke("worker", "--models", models, "--url", NOWHERE, "--json")
    assert run.exit_code == 1
    assert json.loads(run.stdout)["error"]["code"] == "QUEUE_UNAVAILABLE"
    run = invoke("worker", "--models", models, "--url", "http://127.0.0.1")
    assert run.exit_code == 2
    assert "not a Redis URL" in run.stderr
    run = invoke("worker", "--models", models, "--url", "redis://127.0.0.1/jobs")
    assert run.exit_code == 2
    assert "write redis://127.0.0.1:6379/0" in run.stderr


def test_a_model_file_must_be_there(tmp_path):
    run = invoke("worker", "--url", NOWHERE)
    assert run.exit_code == 2
    assert str(tmp_path / "home" / "models" / "models.toml") in run.stderr
    assert "ccs models prepare" in run.stderr


def test_all_modalities_of_the_file_are_served_unless_some_are_named(models):
    assert require_models(models, ()) == ("text", "audio")
    assert require_models(models, ("audio",)) == ("audio",)


@pytest.mark.parametrize(
    ("more", "modalities", "complaint"),
    [
        ("", ("text", "vision"), "no model of modality 'vision'"),
        ('[models.two]\nmodality = "audio"\nengine = "simulated"\n', ("audio",), "no default"),
        ('[models.v]\nmodality = "vision"\nengine = "vision"\npath = "gone"\n', (), "no folder"),
        ("[models.x]\n", (), "'x'"),
    ],
)
def test_each_modality_needs_a_model_that_is_here(models, more, modalities, complaint):
    models.write_text(SIMULATED + more)
    with pytest.raises(ConfigurationError, match=complaint):
        require_models(models, modalities)


def test_a_missing_torch_is_noticed_before_a_model_needs_it(models, monkeypatch, tmp_path):
    (tmp_path / "v").mkdir()
    models.write_text(SIMULATED + '[models.v]\nmodality = "vision"\nengine = "vision"\npath = "v"\n')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ccs-workers\[worker\]'"):
        require_models(models, ())
    assert require_models(models, ("text",)) == ("text",)


def test_prepared_models_lie_under_home(tmp_path):
    assert prepared_model_file(tmp_path) == tmp_path / "models" / "models.toml"


def test_models_list_shows_what_is_declared_and_what_could_be_prepared(models):
    rows = [line.split() for line in invoke("models", "list", "--models", models).stdout.splitlines()]
    assert rows[0] == ["alias", "modality", "engine", "default", "state", "source"]
    assert rows[1] == ["sim", "text", "simulated", "yes", "ready"]
    assert any(row[0] == "smollm2" and "prepared" in row for row in rows)
    listed = json.loads(invoke("models", "list", "--models", models, "--json").stdout)
    assert listed["model_file"] == str(models)
    assert [row["alias"] for row in listed["models"]][:2] == ["sim", "sim-audio"]


def test_models_list_works_before_anything_is_prepared():
    run = invoke("models", "list")
    assert run.exit_code == 0
    assert "whisper-tiny-en" in run.stdout
    assert "'ccs models prepare' makes one" in run.stderr
    assert json.loads(invoke("models", "list", "--json").stdout)["model_file"] is None


def test_models_check_tells_what_is_wrong(models, tmp_path):
    assert invoke("models", "check", "--models", models).exit_code == 0
    models.write_text(SIMULATED + '[models.v]\nmodality = "vision"\nengine = "vision"\npath = "gone"\n')
    run = invoke("models", "check", "--models", models)
    assert run.exit_code == 1
    assert f"there is no folder {tmp_path / 'gone'}" in run.stdout
    run = invoke("models", "check", "v", "--models", models, "--json")
    assert run.exit_code == 1
    (report,) = json.loads(run.stdout)["models"]
    assert (report["alias"], report["ok"]) == ("v", False)
    assert invoke("models", "check", "sim", "--models", models).exit_code == 0


@pytest.mark.parametrize("command", ["check", "prepare"])
def test_an_unknown_model_is_said_with_those_there_are(command, models):
    options = ("--models", models) if command == "check" else ()
    run = invoke("models", command, "nothing", *options)
    assert run.exit_code == 1
    assert run.stderr.startswith("error: NOT_FOUND: no model 'nothing'")


@pytest.mark.parametrize(
    ("text", "total", "parts"),
    [("16", 16, {}), ("text=8,vision=4", 12, {"text": 8, "vision": 4}), (" audio = 1 ", 1, {"audio": 1})],
)
def test_slots_are_a_number_or_parts(text, total, parts):
    plan = parse_slots(text.strip() if "=" not in text else text)
    assert (plan.total, plan.parts) == (total, parts)
    assert parse_slots(str(plan)) == plan


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--slots", "text=0", "from 1 to 4096, not 0"),
        ("--slots", "text=8,text=4", "given once for each modality"),
        ("--slots", "smell=8", "text, vision, audio, fusion"),
        ("--slots", "text=4096,audio=1", "add up to a number from 1 to 4096"),
        ("--slots", "²", "such as 16, or text=8,vision=4; got '²'"),
        ("--slots", "text8", "such as 16, or text=8,vision=4; got 'text8'"),
        ("--slots", "text=8;vision=4", "such as 16, or text=8,vision=4; got 'text=8;vision=4'"),
        ("--slots", "", "such as 16, or text=8,vision=4; got ''"),
        ("--slots", "-1", "from 1 to 4096, not -1"),
        ("--slots", "1.5", "from 1 to 4096, not 1.5"),
        ("--slots", "9" * 5000, "from 1 to 4096, not 999"),
        ("--floors", "text", "such as text=8,vision=4"),
        ("--floors", ",", "such as text=8,vision=4; got ','"),
    ],
)
def test_slots_that_can_not_be_read_are_refused(models, option, value, complaint):
    run = invoke("worker", "--url", NOWHERE, "--models", models, option, value)
    assert run.exit_code == 2
    assert complaint in " ".join(run.stderr.split())


def test_celery_s_own_command_takes_the_same_from_the_environment(models):
    found = worker_settings_from_environment(
        {
            "CCS_REDIS_URL": NOWHERE,
            "CCS_MODELS": str(models),
            "CCS_SLOTS": "text=3,audio=2",
            "CCS_ALLOCATION": "static",
        }
    )
    assert (found.slots, found.slot_parts, found.allocation) == (5, {"text": 3, "audio": 2}, "static")
    found = worker_settings_from_environment({"CCS_REDIS_URL": NOWHERE, "CCS_FLOORS": "text=2"})
    assert (found.slots, found.floors, found.allocation) == (16, {"text": 2}, "dynamic")
    with pytest.raises(ConfigurationError, match="CCS_ALLOCATION must be dynamic or static"):
        worker_settings_from_environment({"CCS_REDIS_URL": NOWHERE, "CCS_ALLOCATION": "fair"})
