"""Continued sounds: behind every output and within every window's text, the rest of the whole run comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from ccs_broker.contract import Modality, Usage
from ccs_broker.errors import EngineError
from ccs_workers.engines.protocol import Delta, Done, Failed, Progress, Resume
from ccs_workers.engines.whisper import WhisperEngine
from ccs_workers.engines.whisper.model import Transcript
from ccs_workers.models.spec import ModelSpec
from tests.media_jobs import RATE_HZ, Outputs, audio_job, encode
from tests.resuming import (
    Runner,
    check_every_cut,
    check_every_inner_cut,
    cut_after_progress,
    cut_before_progress,
    resume_of,
)
from tests.speech import SHORT_CLIP, SHORT_WORDS, whisper_spec, words

pytestmark = pytest.mark.engines

LOW_RATE_HZ = 1_000
SILENCE = 0
#: What is heard at each loudness. At 3 nothing, at 2 and 4 what could follow from a part of the text before.
TEXTS = {
    1: "Yes, yes.",
    2: " yes. ",
    3: "",
    4: "yes. yes.",
    5: "静かな",
    6: "朝です",
    7: "and\tgo on \U0001f600",
}
LEVELS = (1, 2, SILENCE, 3, 4, 5, 6, 7)
LATE_SPEECH = (SILENCE, 3, 7)


class FakeEars:
    """Hears in each window what was written for its loudness, and remembers which it heard."""

    def __init__(self, texts):
        self.texts = texts
        self.heard = []

    def features(self, samples):
        # Of a sine, in tenths of full scale.
        return torch.tensor(float(np.median(np.abs(samples))) * 2**0.5 * 10).round()

    def transcribe(self, features, cancelled):
        levels = [int(feature) for feature in features]
        self.heard += levels
        return [Transcript(text=self.texts[level], tokens=len(self.texts[level])) for level in levels]


@pytest.fixture
def engines():
    made = []
    yield made
    for engine in made:
        engine.close()


def sound_of(*levels):
    """A window of 25 s of each loudness (in tenths), a pause between them; silence lasts longer, to end a window."""
    pause, parts = np.zeros(LOW_RATE_HZ // 2), []
    for level in levels:
        times = np.arange((25 if level else 30) * LOW_RATE_HZ) / LOW_RATE_HZ
        parts += [level / 10 * np.sin(2 * np.pi * 100 * times), pause]
    return encode(np.concatenate(parts), LOW_RATE_HZ)


SOUND = sound_of(*LEVELS)


def hearing(engines, texts, **options):
    outputs = Outputs()
    spec = ModelSpec(alias="ears", modality=Modality.AUDIO, engine="whisper", options=options)
    engine = WhisperEngine(spec, outputs.emit)
    engine._model = FakeEars(texts)
    engine._begin()
    engines.append(engine)
    return Runner(engine, outputs)


def test_a_sound_is_continued_behind_every_output(engines):
    run = hearing(engines, TEXTS)
    job = audio_job("sound", SOUND)
    whole = run(job)
    assert run.outputs.text("sound") == "Yes, yes. yes. yes. yes. 静かな朝です and\tgo on \U0001f600"
    done = whole[-1]
    assert done.data == {"audio_s": 209.0, "windows": 8, "no_speech": False}
    assert done.usage == Usage(audio_s=209.0, completion_tokens=sum(map(len, TEXTS.values())))
    progress = run.outputs.progress("sound")
    assert [entry["no_speech"] for entry in progress] == [level == SILENCE for level in LEVELS]
    assert [entry["tokens"] for entry in progress] == [len(TEXTS.get(level, "")) for level in LEVELS]
    assert progress[-1]["text_end"] == len(run.outputs.text("sound"))

    check_every_cut(whole, job, hearing(engines, TEXTS))
    check_every_inner_cut(whole, job, hearing(engines, TEXTS))


def test_speech_heard_before_counts_at_the_end(engines):
    run = hearing(engines, TEXTS)
    for name, levels in (("late", LATE_SPEECH), ("early", LATE_SPEECH[::-1]), ("none", (SILENCE, SILENCE))):
        job = audio_job(name, sound_of(*levels))
        whole = run(job)
        assert whole[-1].data["no_speech"] is (name == "none")
        check_every_cut(whole, job, hearing(engines, TEXTS))


def test_windows_that_are_done_are_not_heard_again(engines):
    whole = hearing(engines, TEXTS)(audio_job("sound", SOUND))
    resume, rest = cut_after_progress(whole, 4)
    again = hearing(engines, TEXTS)
    assert again(replace(audio_job("sound", SOUND), resume=resume)) == rest
    assert again.engine._model.heard == [5, 6, 7]
    resume, rest = cut_after_progress(whole, 7)
    assert again(replace(audio_job("all", SOUND), resume=resume)) == rest == [whole[-1]]
    assert again.engine._model.heard == [5, 6, 7]


@pytest.mark.parametrize("heard", ["yes. yes", "Yes. yes.", "", "yes. yes.."])
def test_a_window_that_sounds_otherwise_now_fails_its_job_unless_it_only_goes_on(engines, heard):
    whole = hearing(engines, TEXTS)(audio_job("sound", SOUND))
    resume = cut_before_progress(whole, 4)
    assert resume.text.endswith(" yes. yes.")
    run = hearing(engines, TEXTS | {4: heard})
    outputs = run(replace(audio_job("sound", SOUND), resume=resume))
    if heard == "yes. yes..":
        assert outputs[0] == Delta(text=".")
    else:
        assert [type(output) for output in outputs] == [Failed]
        assert outputs[0].code == "ENGINE_FAILED"
        assert "can't be continued: from character " in outputs[0].message
        assert "yes" not in outputs[0].message
    mate = run(audio_job("mate", sound_of(5)))
    assert mate[0] == Delta(text=TEXTS[5])


def test_text_behind_the_last_window_fails_the_job(engines):
    run = hearing(engines, TEXTS)
    whole = run(audio_job("sound", SOUND))
    outputs = run(replace(audio_job("more", SOUND), resume=resume_of(whole, more=" more")))
    assert [type(output) for output in outputs] == [Failed]
    assert outputs[0].code == "ENGINE_FAILED"


@pytest.mark.parametrize(
    "change",
    [{"start_s": 24.0}, {"end_s": 26.0}, {"windows": 9}, {"window": 3}],
    ids=lambda change: next(iter(change)),
)
def test_other_windows_than_before_fail_the_job(engines, change):
    job, run = audio_job("sound", SOUND), hearing(engines, TEXTS)
    resume = resume_of(run(job)[:4])
    assert len(resume.progress) == 2
    changed = replace(resume, progress=(resume.progress[0], {**resume.progress[1], **change}))
    outputs = run(replace(job, key="again", resume=changed))
    assert [type(output) for output in outputs] == [Failed]
    assert "cut into other windows" in outputs[0].message


def test_more_windows_than_there_are_fail_the_job(engines):
    run = hearing(engines, TEXTS)
    resume = resume_of(run(audio_job("sound", SOUND))[:-1])
    assert isinstance(run(replace(audio_job("short", sound_of(1)), resume=resume))[0], Failed)


def test_what_was_told_of_silence_counts_where_the_gate_is_another(engines):
    job = audio_job("sound", sound_of(SILENCE, SILENCE))
    whole = hearing(engines, {0: "", **TEXTS}, silence_dbfs=False)(job)
    outputs = hearing(engines, TEXTS)(replace(job, resume=resume_of(whole[:1])))
    assert outputs[-1].data["no_speech"] is False


WELL = {"window": 1, "windows": 1, "text_end": 0, "end_s": 1.0, "tokens": 0, "no_speech": True}


@pytest.mark.parametrize(
    "change",
    [
        {"text_end": 1},
        {"text_end": -1},
        {"text_end": "0"},
        {"end_s": "x"},
        {"tokens": -1},
        {"tokens": None},
        {"no_speech": 1},
    ],
    ids=str,
)
def test_progress_of_another_engine_is_refused_at_once(engines, change):
    run = hearing(engines, TEXTS)
    for entry in ({**WELL, **change}, {name: WELL[name] for name in WELL if name not in change}):
        with pytest.raises(EngineError, match="doesn't fit this engine"):
            run.engine.start(replace(audio_job("sound", SOUND), resume=Resume(text="", progress=(entry,))))
    assert run.outputs.all == []


def test_a_cancelled_job_counts_what_earlier_attempts_used(engines):
    run = hearing(engines, TEXTS)
    resume = resume_of(run(audio_job("sound", SOUND))[:4])
    run.outputs.hook = lambda key, output: run.engine.cancel(key)
    *_, progress, end = run(replace(audio_job("again", SOUND), resume=resume))
    assert (end.finish_reason, progress.data["window"]) == ("cancelled", 3)
    tokens = len(TEXTS[1]) + len(TEXTS[2])
    assert end.usage == Usage(audio_s=progress.data["end_s"], completion_tokens=tokens)


def test_a_real_sound_is_continued(engines, models_dir):
    samples, _ = soundfile.read(SHORT_CLIP, dtype="float32")
    # Two windows: the second clip begins after the pause that is looked for first.
    job = audio_job("sound", encode(np.concatenate([samples, np.zeros(26 * RATE_HZ, np.float32), samples])))
    runs = []
    for _ in range(2):
        outputs = Outputs()
        engines.append(WhisperEngine(whisper_spec(models_dir), outputs.emit))
        engines[-1].load()
        runs.append(Runner(engines[-1], outputs))
    whole = runs[0](job)
    assert words(runs[0].outputs.text("sound")) == f"{SHORT_WORDS} {SHORT_WORDS}"
    assert [type(output) for output in whole] == [Delta, Progress, Delta, Progress, Done]
    for count in (1, 2):
        continued = replace(job, key=f"cut {count}", resume=resume_of(whole[:count]))
        assert runs[1](continued) == whole[count:]
    known = replace(resume_of(whole[:2]), text=whole[0].text + whole[2].text[:9])
    assert runs[1](replace(job, key="part", resume=known)) == [Delta(text=whole[2].text[9:]), *whole[3:]]
