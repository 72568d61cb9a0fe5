"""Speech to text with the real Whisper tiny.en: right words, any length, silence, batches, cancel."""

from __future__ import annotations

import threading
from io import BytesIO
from itertools import pairwise

import numpy as np
import psutil
import pytest
import soundfile

from ccs_broker.errors import AudioTooLongError, InternalError, InvalidAudioError
from ccs_workers.engines.protocol import Delta, Done, Failed, Progress
from ccs_workers.engines.whisper import WhisperEngine
from ccs_workers.samples import sample_path
from tests.media_jobs import RATE_HZ, Outputs, audio_job, encode, noise
from tests.speech import SHORT_CLIP, SHORT_WORDS, whisper_spec, words

pytestmark = pytest.mark.engines

CLIP_WORDS = (
    "and mr john dashwood had then leisure to consider how much there might be prudently in his power "
    "to do for them"
)


def samples_of(path):
    samples, rate_hz = soundfile.read(BytesIO(path.read_bytes()), dtype="float32")
    assert rate_hz == RATE_HZ
    return samples


@pytest.fixture(scope="module")
def loaded(models_dir):
    """One engine for the whole module, and what it said when it was loaded."""
    outputs = Outputs()
    engine = WhisperEngine(whisper_spec(models_dir), lambda key, output: outputs.emit(key, output))
    info = engine.load()
    yield engine, outputs, info
    engine.close()


@pytest.fixture
def outputs(loaded):
    loaded[1].all.clear()
    loaded[1].hook = lambda key, output: None
    return loaded[1]


@pytest.fixture
def engine(loaded, outputs):
    return loaded[0]


class Asked(list):
    """How many windows each call of the model had; the model works only while ``open`` is set."""

    def __init__(self):
        super().__init__()
        self.open, self.busy = threading.Event(), threading.Event()
        self.open.set()


@pytest.fixture
def asked(engine, monkeypatch):
    calls = Asked()
    transcribe = engine._model.transcribe

    def counted(features, *, cancelled):
        calls.append(len(features))
        calls.busy.set()
        assert calls.open.wait(60)
        return transcribe(features, cancelled=cancelled)

    monkeypatch.setattr(engine._model, "transcribe", counted)
    yield calls
    calls.open.set()


def test_it_tells_what_it_loaded(loaded):
    info = loaded[2]
    assert (info.alias, info.modality, info.device, info.dtype) == ("whisper", "audio", "cpu", "float32")
    # 37.76 million weights in float32; the tied output layer counts once.
    assert info.weights_bytes == pytest.approx(151_041_024, rel=0.01)
    assert info.load_s > 0


def test_the_sample_clip_is_heard_word_by_word(engine, outputs):
    engine.start(audio_job("clip", sample_path("clip.wav").read_bytes()))
    done = outputs.done("clip")

    assert words(outputs.text("clip")) == CLIP_WORDS
    assert done.finish_reason == "end"
    assert done.usage.audio_s == 7.1
    assert done.usage.completion_tokens > 20
    assert done.data == {"audio_s": 7.1, "windows": 1, "no_speech": False}
    place = {"window": 1, "windows": 1, "start_s": 0.0, "end_s": 7.1, "no_speech": False}
    heard = {"tokens": done.usage.completion_tokens, "text_end": len(outputs.text("clip"))}
    assert outputs.progress("clip") == [place | heard]


@pytest.mark.parametrize(
    ("container", "rate_hz", "channels"), [("FLAC", 44_100, 2), ("OGG", 48_000, 1), ("MP3", 22_050, 2)]
)
def test_rate_channels_and_container_do_not_change_the_words(engine, outputs, container, rate_hz, channels):
    positions = np.arange(0, 3.29 * rate_hz) * RATE_HZ / rate_hz
    clip = samples_of(SHORT_CLIP)
    louder = np.interp(positions, np.arange(len(clip)), clip).astype(np.float32)
    # All of the sound on one side: the mean halves it and keeps its words.
    sides = [louder, np.zeros_like(louder)][:channels]
    engine.start(audio_job("clip", encode(np.stack(sides, axis=1), rate_hz, container)))
    outputs.done("clip")
    assert words(outputs.text("clip")) == SHORT_WORDS


def test_long_sound_is_heard_completely_window_by_window(engine, outputs, asked):
    clip = samples_of(sample_path("clip.wav"))
    pause = np.zeros(RATE_HZ // 2, np.float32)
    sound = np.concatenate([clip, pause] * 8)
    engine.start(audio_job("long", encode(sound)))
    done = outputs.done("long", 120)

    assert words(outputs.text("long")) == " ".join([CLIP_WORDS] * 8)
    assert done.data["audio_s"] == done.usage.audio_s == len(sound) / RATE_HZ == 60.8
    progress = outputs.progress("long")
    assert [entry["window"] for entry in progress] == list(range(1, done.data["windows"] + 1))
    assert {entry["windows"] for entry in progress} == {len(progress)}
    assert progress[0]["start_s"] == 0
    assert progress[-1]["end_s"] == 60.8
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(progress))
    assert all(0 < entry["end_s"] - entry["start_s"] <= 30 for entry in progress)
    # Each window's text comes with its progress, the first one before the others are touched.
    kinds = [type(output) for output in outputs.of("long")]
    assert kinds == [Delta, Progress] * len(progress) + [Done]
    assert asked[0] == 1
    assert sum(asked) == len(progress)


def test_windows_of_several_jobs_share_a_batch_and_keep_their_own_text(engine, outputs, asked):
    long = samples_of(sample_path("clip.wav"))
    short = samples_of(SHORT_CLIP)
    sounds = {
        "long": long,
        "short": short,
        "both": np.concatenate([short, np.zeros(8_000, np.float32), long]),
    }
    alone = {}
    for key, sound in sounds.items():
        engine.start(audio_job(key, encode(sound)))
        outputs.done(key)
        alone[key] = outputs.text(key)
    outputs.all.clear()
    asked.clear()

    asked.open.clear()
    asked.busy.clear()
    engine.start(audio_job("before", encode(noise(1.0, dbfs=-30))))
    assert asked.busy.wait(10)
    for key, sound in sounds.items():
        engine.start(audio_job(key, encode(sound)))
    asked.open.set()
    for key in sounds:
        outputs.done(key)

    assert asked == [1, 3]
    assert {key: outputs.text(key) for key in sounds} == alone
    assert words(alone["both"]) == f"{SHORT_WORDS} {CLIP_WORDS}"


@pytest.mark.parametrize(
    "sound",
    [np.zeros(10 * RATE_HZ, np.float32), noise(10.0, dbfs=-80)],
    ids=["zeros", "-80 dBFS"],
)
def test_silence_gives_an_empty_text_without_the_model(engine, outputs, asked, sound):
    engine.start(audio_job("silence", encode(sound, subtype="FLOAT")))
    done = outputs.done("silence")

    assert outputs.text("silence") == ""
    assert done.data == {"audio_s": 10.0, "windows": 1, "no_speech": True}
    assert done.usage.audio_s == 10
    assert outputs.progress("silence")[0]["no_speech"] is True
    assert asked == []


def test_silent_windows_of_a_longer_sound_are_skipped(engine, outputs, asked):
    clip = samples_of(SHORT_CLIP)
    sound = np.concatenate([np.zeros(70 * RATE_HZ, np.float32), clip, np.zeros(40 * RATE_HZ, np.float32)])
    engine.start(audio_job("late", encode(sound)))
    done = outputs.done("late")

    assert words(outputs.text("late")) == SHORT_WORDS
    assert done.data["no_speech"] is False
    heard = [entry for entry in outputs.progress("late") if not entry["no_speech"]]
    assert len(heard) == sum(asked) == 1
    assert len(outputs.progress("late")) == done.data["windows"] > 3


def test_the_gate_can_be_switched_off(engine, outputs, asked, monkeypatch, models_dir):
    open_gate = WhisperEngine(whisper_spec(models_dir, silence_dbfs=False), outputs.emit)._options
    monkeypatch.setattr(engine, "_options", open_gate)
    engine.start(audio_job("silence", encode(np.zeros(RATE_HZ, np.float32))))
    assert outputs.done("silence").data["no_speech"] is False
    assert asked == [1]


def test_the_extractor_never_sees_a_second_axis_or_more_than_30_s(engine):
    for shape in ((RATE_HZ, 2), (1, RATE_HZ), (30 * RATE_HZ + 1,)):
        with pytest.raises(InternalError, match="must be mono"):
            engine._model.features(np.zeros(shape, np.float32))
    assert engine._model.features(np.zeros(30 * RATE_HZ, np.float32)).shape == (1, 80, 3000)


def test_cancel_ends_a_job_within_a_window_and_leaves_its_mates_alone(engine, outputs):
    first_text = threading.Event()
    outputs.hook = lambda key, output: key == "long" and isinstance(output, Delta) and first_text.set()
    clip = samples_of(sample_path("clip.wav"))
    engine.start(audio_job("long", encode(np.concatenate([clip] * 30))))
    assert first_text.wait(60)
    engine.start(audio_job("mate", encode(samples_of(SHORT_CLIP))))
    engine.cancel("long")

    end = outputs.end("long", 15)
    assert end.finish_reason == "cancelled"
    assert 0 < end.usage.audio_s <= 31
    assert end.data["audio_s"] == 213
    assert outputs.text("long").startswith("And Mr. John Dashwood")
    outputs.done("mate")
    assert words(outputs.text("mate")) == SHORT_WORDS


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", InvalidAudioError), (b"<html>404</html>", InvalidAudioError)],
    ids=["empty", "HTML"],
)
def test_what_the_header_gives_away_is_refused_at_once(engine, outputs, data, error):
    with pytest.raises(error):
        engine.start(audio_job("bad", data))
    assert outputs.all == []


def test_too_long_a_sound_is_refused_at_once(engine, outputs):
    with pytest.raises(AudioTooLongError):
        engine.start(audio_job("bad", encode(np.zeros(3601 * 1000, np.float32), 1000, "FLAC")))


def test_damage_found_while_decoding_fails_that_job_alone(engine, outputs):
    flac = encode(noise(5.0), RATE_HZ, "FLAC")
    not_a_number = noise(1.0)
    not_a_number[9_000] = np.nan
    engine.start(audio_job("cut", flac[: len(flac) // 2]))
    engine.start(audio_job("good", SHORT_CLIP.read_bytes()))
    engine.start(audio_job("nan", encode(not_a_number, subtype="FLOAT")))

    for key in ("cut", "nan"):
        assert isinstance(end := outputs.end(key), Failed)
        assert end.code == "INVALID_AUDIO"
    outputs.done("good")
    assert words(outputs.text("good")) == SHORT_WORDS


def test_an_hour_of_sound_needs_no_more_memory_than_a_window(engine, outputs, asked):
    hour = encode(np.zeros(3600 * 8_000, np.int16), 8_000, "FLAC")
    process = psutil.Process()
    before = process.memory_info().rss
    peaks = []
    outputs.hook = lambda key, output: peaks.append(process.memory_info().rss)
    engine.start(audio_job("hour", hour))
    assert outputs.done("hour", 60).data["audio_s"] == 3600
    assert max(peaks) - before < 50e6
    assert asked == []
