"""Loading the models of the audio and vision engines: whole, finite, one at a time, with options that exist."""

from __future__ import annotations

import threading

import pytest
import torch
from transformers import PreTrainedModel

from ccs_broker.contract import Modality
from ccs_broker.errors import ConfigurationError
from ccs_workers.engines.loading import check_parameters
from ccs_workers.engines.vision import VisionEngine
from ccs_workers.engines.whisper import WhisperEngine
from ccs_workers.models.spec import ModelSpec
from tests.media_jobs import Outputs, audio_job
from tests.speech import SHORT_CLIP, SHORT_WORDS, whisper_spec, words

pytestmark = pytest.mark.engines


def ignore(key, output):
    """Nothing is emitted while models load."""


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_batch": 0}, "'max_batch' must be a whole number"),
        ({"silence_dbfs": "loud"}, "'silence_dbfs' must be a number"),
        ({"max_audio": 5}, "'max_audio' is unknown"),
        ({"torch_threads": True}, "'torch_threads' must be"),
    ],
)
def test_bad_options_are_named(models_dir, options, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        WhisperEngine(whisper_spec(models_dir, **options), ignore)


def test_engines_that_load_at_once_do_not_spoil_each_other(models_dir):
    ties = PreTrainedModel.tie_weights
    collected = [Outputs() for _ in range(3)]
    engines = [WhisperEngine(whisper_spec(models_dir), outputs.emit) for outputs in collected]
    loaders = [threading.Thread(target=engine.load) for engine in engines]
    for loader in loaders:
        loader.start()
    for loader in loaders:
        loader.join(60)

    assert PreTrainedModel.tie_weights is ties
    for engine, outputs in zip(engines, collected, strict=True):
        engine.start(audio_job("clip", SHORT_CLIP.read_bytes()))
        outputs.done("clip")
        assert words(outputs.text("clip")) == SHORT_WORDS
        engine.close()


def test_an_english_model_refuses_other_languages(models_dir):
    with pytest.raises(ConfigurationError, match="knows English only"):
        WhisperEngine(whisper_spec(models_dir, language="de"), ignore).load()


def test_a_folder_that_is_no_whisper_model_is_refused(models_dir, tmp_path):
    for folder in (tmp_path, models_dir / "vision" / "classify"):
        spec = ModelSpec(alias="w", modality=Modality.AUDIO, engine="whisper", path=folder)
        with pytest.raises(ConfigurationError, match="'w'"):
            WhisperEngine(spec, ignore).load()


def test_weights_that_are_not_numbers_or_not_there_are_refused():
    layer = torch.nn.Linear(2, 2)
    check_parameters(layer, "fine")
    with torch.no_grad():
        layer.weight[0, 1] = torch.inf
    with pytest.raises(ConfigurationError, match="weight weight holds values that aren't finite"):
        check_parameters(layer, "broken")
    with pytest.raises(ConfigurationError, match=r"weight (weight|bias) was not loaded"):
        check_parameters(torch.nn.Linear(2, 2, device="meta"), "absent")


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"options": {"tasks": ["paint"]}}, "'tasks' must be a list of one or more of 'read', 'classify'"),
        ({"options": {"tasks": []}}, "'tasks' must be"),
        ({"options": {"max_pixel": 5}}, "'max_pixel' is unknown"),
        ({"options": {"min_line_score": 2}}, "'min_line_score' must be a number from 0 to 1"),
        ({"dtype": "bfloat16"}, "'dtype' must be 'float32'"),
    ],
)
def test_bad_options_of_vision_are_named(models_dir, keys, complaint):
    spec = ModelSpec(
        alias="sight", modality=Modality.VISION, engine="vision", path=models_dir / "vision", **keys
    )
    with pytest.raises(ConfigurationError, match=complaint):
        VisionEngine(spec, ignore)


def test_a_folder_without_the_models_is_refused(tmp_path):
    spec = ModelSpec(alias="sight", modality=Modality.VISION, engine="vision", path=tmp_path)
    with pytest.raises(ConfigurationError, match=r"'sight'.*can't be loaded"):
        VisionEngine(spec, ignore).load()
