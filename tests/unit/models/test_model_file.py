"""The model file: what it may say, and that every fault names the file, the alias and the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccs_broker.contract import Modality
from ccs_broker.errors import ConfigurationError, NotFoundError
from ccs_workers.models import ModelSpec, load_model_file

SIMULATED = '[models.sim]\nmodality = "text"\nengine = "simulated"\n'

EYES = '[models.eyes]\nmodality = "vision"\nshares = "sim"\n'


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "models.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_the_smallest_file_and_loose_options(write):
    spec = load_model_file(
        write(SIMULATED + 'default = true\ntokens_per_second = 50\nnames = ["a", 1]\n')
    ).get("sim")
    assert spec == ModelSpec(
        alias="sim",
        modality=Modality.TEXT,
        engine="simulated",
        default=True,
        options={"tokens_per_second": 50, "names": ["a", 1]},
    )
    assert (spec.path, spec.hub, spec.dtype, spec.device, spec.source) == (None, None, "float32", "auto", "")


def test_all_keys_and_the_path_is_relative_to_the_file(write):
    path = write("""
        [models."tiny.v1"]
        modality = "audio"
        engine = "whisper"
        path = "folder/tiny"
        dtype = "bfloat16"
        device = "cuda:1"
        beams = 1
        [models."tiny.v1".options]
        path = "an option of this name"
        nested = {deep = [1.5, true]}
        [models.hub]
        modality = "vision"
        engine = "image-text"
        hub = "org/model"
        revision = "v2"
    """)
    tiny, hub = load_model_file(path).specs
    assert tiny.path == path.parent / "folder/tiny"
    assert tiny.path.is_absolute()
    assert (tiny.dtype, tiny.device, tiny.default) == ("bfloat16", "cuda:1", False)
    assert tiny.options == {
        "path": "an option of this name",
        "nested": {"deep": [1.5, True]},
        "beams": 1,
    }
    assert (hub.hub, hub.revision, hub.path, hub.source) == ("org/model", "v2", None, "org/model")


def test_a_relative_file_gives_absolute_paths(write, monkeypatch):
    path = write('[models.a]\nmodality = "text"\nengine = "text"\npath = "a"\n')
    monkeypatch.chdir(path.parent)
    assert load_model_file(Path("models.toml")).get("a").path == path.parent / "a"


REAL = '[models.m]\nmodality = "text"\nengine = "text"\npath = "m"\n'

#: What the file holds, and words of which each must stand in the message, beside the file's name.
FAULTS = [
    ("[models.m\n", ["TOML"]),
    (b"\xff\xfe\x00", ["read"]),
    ("", ["[models.ALIAS]"]),
    ("[models]\n", ["[models.ALIAS]"]),
    ("models = 3\n", ["[models.ALIAS]"]),
    ('[model.m]\nmodality = "text"\n', ["'model'", "[models.ALIAS]"]),
    ("[models]\nm = 3\n", ["'m'", "table"]),
    (REAL.replace(".m]", ".m.en]"), ["'m'", "dot"]),
    (REAL.replace(".m]", '."a b"]'), ["'a b'", "letters"]),
    (REAL.replace(".m]", '."../x"]'), ["'../x'", "letters"]),
    (REAL.replace(".m]", '.""]'), ["''", "letters"]),
    (REAL.replace(".m]", f".{'m' * 65}]"), ["letters"]),
    (REAL.replace('modality = "text"\n', ""), ["'m'", "'modality'", "missing"]),
    (REAL.replace('modality = "text"', 'modality = "video"'), ["'m'", "'modality'", "'video'", "fusion"]),
    (REAL.replace('modality = "text"', "modality = 1"), ["'m'", "'modality'", "string"]),
    (REAL.replace('engine = "text"\n', ""), ["'m'", "'engine'", "missing"]),
    (REAL.replace('engine = "text"', 'engine = "os; rm"'), ["'m'", "'engine'"]),
    (REAL.replace('engine = "text"', "engine = []"), ["'m'", "'engine'", "string"]),
    (REAL.replace('path = "m"\n', ""), ["'m'", "'path'", "'hub'", "missing"]),
    (REAL.replace('path = "m"', 'path = ""'), ["'m'", "'path'", "string"]),
    (REAL.replace('path = "m"', "path = 7"), ["'m'", "'path'", "string"]),
    (REAL.replace('path = "m"', "hub = 7"), ["'m'", "'hub'", "string"]),
    (REAL + 'hub = "org/m"\n', ["'m'", "'path'", "'hub'"]),
    (REAL + 'revision = "v1"\n', ["'m'", "'revision'", "'hub'"]),
    (REAL + 'dtype = "int4"\n', ["'m'", "'dtype'", "'int4'", "bfloat16"]),
    (REAL + "dtype = 16\n", ["'m'", "'dtype'", "string"]),
    (REAL + 'device = "GPU 0"\n', ["'m'", "'device'", "'GPU 0'", "cuda:1"]),
    (REAL + "device = 0\n", ["'m'", "'device'", "string"]),
    (REAL + 'default = "yes"\n', ["'m'", "'default'", "true or false"]),
    (REAL + "options = 3\n", ["'m'", "'options'", "table"]),
    (REAL + "defualt = true\n", ["'m'", "'defualt'", "'default'"]),
    (REAL + 'devise = "cpu"\n', ["'m'", "'devise'", "'device'"]),
    (REAL + "since = 2024-01-01\n", ["'m'", "'since'", "JSON"]),
    (REAL + "limit = nan\n", ["'m'", "'limit'", "JSON"]),
    (REAL + "deep = {er = [1, inf]}\n", ["'m'", "'deep.er'", "JSON"]),
    (REAL + "beams = 1\n[models.m.options]\nbeams = 2\n", ["'m'", "'beams'", "twice"]),
    (REAL + EYES, ["'eyes'", "'shares'", "this file"]),
    (EYES, ["'eyes'", "'shares'", "this file"]),
    (SIMULATED + EYES + 'engine = "simulated"\n', ["'eyes'", "'engine'", "shared"]),
    (SIMULATED + EYES.replace('"sim"', "7"), ["'eyes'", "'shares'", "string"]),
    (SIMULATED + EYES.replace('"vision"', '"smell"'), ["'eyes'", "'modality'", "vision"]),
    (
        SIMULATED + EYES + EYES.replace(".eyes", ".ears").replace('"sim"', '"eyes"'),
        ["'ears'", "'shares'", "engine of its own"],
    ),
    (
        REAL + "default = true\n" + REAL.replace(".m]", ".n]") + "default = true\n",
        ["'n'", "'m'", "'default'", "'text'"],
    ),
]


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_every_fault_names_file_alias_and_key(write, text, words):
    path = write(text)
    with pytest.raises(ConfigurationError) as caught:
        load_model_file(path)
    message = caught.value.message
    assert str(path) in message
    assert [word for word in words if word not in message] == []


def test_one_engine_can_serve_several_modalities(write):
    path = write(EYES + "default = true\n" + SIMULATED + 'reference = "device.json"\n')
    file = load_model_file(path)
    eyes, sim = file.specs
    assert (eyes.alias, eyes.modality, eyes.default) == ("eyes", Modality.VISION, True)
    assert eyes.serving == sim.serving == sim
    assert eyes.options == sim.options == {"reference": str(path.parent / "device.json")}
    # It finds its engine also where the model it shares isn't served.
    assert file.for_modalities(["vision"]).default_for("vision").serving == sim


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: .*ccs models prepare"):
        load_model_file(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigurationError, match="can't be read"):
        load_model_file(tmp_path)


def test_choosing_models(write):
    file = load_model_file(
        write(
            SIMULATED
            + SIMULATED.replace("sim]", "sim2]")
            + "default = true\n"
            + SIMULATED.replace("sim]", "ears]").replace('"text"', '"audio"')
            + SIMULATED.replace("sim]", "eyes]").replace('"text"', '"vision"')
            + SIMULATED.replace("sim]", "eyes2]").replace('"text"', '"vision"')
        )
    )
    assert [spec.alias for spec in file.for_modalities(["audio", "text"]).specs] == ["sim", "sim2", "ears"]
    assert file.default_for("text").alias == "sim2"
    assert file.default_for(Modality.AUDIO).alias == "ears"
    with pytest.raises(ConfigurationError, match=r"'vision'.*eyes, eyes2.*default = true"):
        file.default_for("vision")
    with pytest.raises(NotFoundError, match="'fusion'"):
        file.default_for("fusion")
    with pytest.raises(NotFoundError, match=r"'nobody'.*sim, sim2, ears, eyes, eyes2"):
        file.get("nobody")


def test_a_spec_survives_json(write):
    text = REAL + 'default = true\ndtype = "auto"\n[models.m.options]\nmodality = "x"\nn = {a = [1, 2.5]}\n'
    hub = (
        REAL.replace(".m]", ".h]").replace("default = true\n", "").replace("path", "hub") + 'revision = "r"\n'
    )
    for spec in load_model_file(write(text + hub + SIMULATED)).specs:
        assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_broken_json_spec_is_refused():
    with pytest.raises(ConfigurationError, match="alias"):
        ModelSpec.from_json({"modality": "text"})
    with pytest.raises(ConfigurationError, match="'engine'"):
        ModelSpec.from_json({"alias": "m", "modality": "text"})


def test_options_can_not_be_changed(write):
    spec = load_model_file(write(SIMULATED + "speed = 1\n")).get("sim")
    with pytest.raises(TypeError):
        spec.options["speed"] = 2
    assert isinstance(hash(spec), int)
