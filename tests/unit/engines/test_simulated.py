"""The simulated engine: its answers, its resumption behind every output, and its faults on demand."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ccs_broker.contract import Modality, Sampling, Usage
from ccs_broker.errors import ConfigurationError, ContextTooLongError, EngineError
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed, Progress, Resume
from ccs_workers.engines.simulated import SimulatedEngine, digest_of, text_of, word_at
from ccs_workers.models.spec import ModelSpec
from tests.media_jobs import Outputs
from tests.resuming import check_every_cut, resume_of

JOB = EngineJob(key="a", prompt="one two three", sampling=Sampling(max_new_tokens=6), seed=7)
MEDIA = replace(JOB, images=(b"x", b"yy"), audio=(b"z" * 16_000,))


def spec_of(**options):
    return ModelSpec(alias="sim", modality=Modality.TEXT, engine="simulated", options=options)


@contextmanager
def running(**options):
    outputs = Outputs()
    engine = SimulatedEngine(spec_of(**options), outputs.emit)
    engine.load()
    try:
        yield engine, outputs
    finally:
        engine.close()


def run(job, **options):
    """All outputs of a job in an engine of its own."""
    with running(**options) as (engine, outputs):
        engine.start(job)
        outputs.end(job.key, 10)
        return outputs.of(job.key)


def test_an_answer_depends_on_content_and_position_alone():
    with running() as (engine, outputs):
        for key in ("a", "b"):
            engine.start(replace(MEDIA, key=key))
        engine.start(replace(MEDIA, key="other", seed=8))
        for key in ("a", "b", "other"):
            done = outputs.done(key, 10)
            assert done.finish_reason == "length"
            assert done.usage == Usage(prompt_tokens=3, completion_tokens=6, images=2, audio_s=0.5)
    digest = digest_of(MEDIA)
    assert outputs.text("a") == outputs.text("b") == text_of(digest, 6)
    assert text_of(digest, 6).split(" ") == [word_at(digest, position) for position in range(6)]
    assert outputs.text("other") != outputs.text("a")
    assert outputs.progress("a") == [
        {"image": 1, "images": 2},
        {"image": 2, "images": 2},
        {"window": 1, "windows": 1},
    ]


def test_a_prompt_and_answer_longer_than_the_context_are_refused():
    with running(context_tokens=8) as (engine, outputs):
        with pytest.raises(ContextTooLongError):
            engine.start(JOB)
        assert outputs.all == []


@pytest.mark.parametrize("job", [JOB, MEDIA], ids=["text", "media"])
@pytest.mark.parametrize("tokens", [0, 4, 100])
def test_a_continued_job_emits_what_is_left_of_the_whole_run(job, tokens):
    whole = run(job, tokens=tokens)
    assert len(whole) == min(tokens, 6) + len(job.images) + len(job.audio) + 1
    with running(tokens=tokens) as (engine, outputs):

        def again(continued):
            engine.start(continued)
            outputs.end(continued.key, 10)
            return outputs.of(continued.key)

        check_every_cut(whole, job, again)


def test_what_was_emitted_before_costs_no_time():
    whole = run(MEDIA)
    began = time.monotonic()
    rest = run(
        replace(MEDIA, resume=resume_of(whole[:8])),
        tokens_per_second=1000,
        seconds_per_image=60,
        seconds_per_audio_second=120,
    )
    assert rest == whole[8:]
    assert time.monotonic() - began < 10


BEFORE = resume_of(run(MEDIA)[:5])


@pytest.mark.parametrize(
    "resume",
    [
        replace(BEFORE, text="something else"),
        replace(BEFORE, text=BEFORE.text + " "),
        replace(BEFORE, token_ids=(0,)),
        replace(BEFORE, token_ids=(1, 0)),
        replace(BEFORE, progress=BEFORE.progress[:2]),
        replace(BEFORE, progress=(*BEFORE.progress, {"window": 2, "windows": 2})),
        Resume(text=text_of(digest_of(MEDIA), 7), token_ids=tuple(range(7)), progress=BEFORE.progress),
    ],
    ids=["text", "more text", "less ids", "other ids", "less progress", "more progress", "too many tokens"],
)
def test_what_is_not_the_beginning_of_the_answer_is_refused(resume):
    with running() as (engine, outputs):
        with pytest.raises(EngineError, match="can't be continued") as caught:
            engine.start(replace(MEDIA, resume=resume))
        assert caught.value.code == "ENGINE_FAILED"
        assert outputs.all == []


def test_a_cancelled_job_counts_what_all_its_attempts_used():
    whole = run(MEDIA)
    with running(tokens_per_second=10) as (engine, outputs):
        outputs.hook = lambda key, output: engine.cancel(key)
        engine.start(replace(MEDIA, resume=resume_of(whole[:5])))
        done = outputs.done("a", 10)
    assert outputs.text("a") == whole[5].text
    assert done.finish_reason == "cancelled"
    assert done.usage == Usage(prompt_tokens=3, completion_tokens=3, images=2, audio_s=0.5)


def test_a_job_cancelled_at_its_pictures_counts_those_done():
    with running(seconds_per_image=0.05) as (engine, outputs):
        outputs.hook = lambda key, output: engine.cancel(key)
        engine.start(MEDIA)
        assert outputs.done("a", 10).usage == Usage(prompt_tokens=3, images=1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tokens_per_second": -1}, "tokens_per_second"),
        ({"tokens_per_second": True}, "tokens_per_second"),
        ({"tokens": 1.5}, "tokens"),
        ({"crash_on": ""}, "crash_on"),
        ({"raise_kind": "flood"}, "raise_kind"),
        ({"token_per_second": 1}, "token_per_second"),
    ],
)
def test_a_wrong_option_is_named(options, name):
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        SimulatedEngine(spec_of(**options), lambda key, output: None)


CRASH = """
import sys, threading
from tests.unit.engines.test_simulated import JOB, Done, replace, running, resume_of, run
tokens, done = map(int, sys.argv[1:])
told = threading.Event()

def tell(key, output):
    print(key, getattr(output, "text", "done"), flush=True)
    if isinstance(output, Done):
        told.set()

with running(crash_on="poison", crash_after_tokens=tokens, tokens_per_second=200) as (engine, outputs):
    outputs.hook = tell
    engine.start(JOB)
    assert told.wait(10)
    told.clear()
    poisoned = replace(JOB, key="b", prompt="a poison pill")
    engine.start(replace(poisoned, resume=resume_of(run(poisoned)[:done]) if done else None))
    assert told.wait(10)
"""


@pytest.mark.parametrize(
    ("tokens", "done", "emitted"),
    [(0, 0, 0), (3, 0, 3), (3, 2, 1), (3, 4, 0), (6, 0, 6), (7, 0, None)],
)
def test_a_crash_kills_the_process_after_so_many_tokens_of_the_whole_job(tokens, done, emitted):
    end = subprocess.run(
        [sys.executable, "-c", CRASH, str(tokens), str(done)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in end.stdout.splitlines() if line.startswith("b")]
    if emitted is None:
        assert (end.returncode, len(lines)) == (0, 7), end.stderr
    else:
        assert (end.returncode, len(lines)) == (-signal.SIGKILL, emitted), end.stderr
    assert end.stdout.count("a done") == 1


class Watched(threading.Event):
    """Tells when somebody waits for it."""

    def __init__(self):
        super().__init__()
        self.waited = threading.Event()

    def wait(self, timeout=None):
        self.waited.set()
        return super().wait(timeout)


def test_a_hang_holds_up_all_jobs_and_cannot_be_cancelled():
    with running(hang_on="stuck", tokens_per_second=50) as (engine, outputs):
        engine._closed = engine._faults._closed = hang = Watched()
        engine.start(replace(JOB, key="mate", sampling=Sampling(max_new_tokens=1000)))
        engine.start(replace(JOB, key="stuck", prompt="it is stuck"))
        assert hang.waited.wait(10)
        said = len(outputs.of("mate"))
        engine.start(replace(JOB, key="after"))
        for key in ("stuck", "after", "mate"):
            engine.cancel(key)
        # A positive wait isn't possible: ten of the mate's steps pass, and nothing comes.
        time.sleep(0.2)
        assert [key for key, _ in outputs.all] == ["mate"] * said


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (
            "memory",
            Failed(code="OUT_OF_MEMORY", message="the device's memory did not hold this job"),
        ),
        ("unknown", Failed(code="ENGINE_FAILED", message="the model raised RuntimeError")),
        (None, Failed(code="ENGINE_FAILED", message="the model raised RuntimeError")),
    ],
)
def test_what_a_job_raises_fails_that_job_alone(kind, failed):
    with running(raise_on="fire", **({"raise_kind": kind} if kind else {})) as (engine, outputs):
        engine.start(replace(JOB, key="bad", prompt="set fire"))
        engine.start(JOB)
        assert outputs.end("bad", 10) == failed
        assert outputs.done("a", 10).usage.completion_tokens == 6


def test_a_device_error_stays():
    with running(raise_on="fire", raise_kind="device", tokens_per_second=20) as (engine, outputs):
        engine.start(replace(JOB, key="mate", sampling=Sampling(max_new_tokens=100)))
        outputs.wait_for(lambda: outputs.of("mate"), 10)
        engine.start(replace(JOB, key="bad", prompt="set fire"))
        for key in ("bad", "mate"):
            assert outputs.end(key, 10) == Failed(
                code="DEVICE_LOST",
                message="the device reported an error after which it can't be used any more",
            )
        with pytest.raises(RuntimeError, match="CUDA error: device-side assert triggered"):
            engine.start(replace(JOB, key="later"))
    assert outputs.text("mate") == text_of(digest_of(JOB), len(outputs.of("mate")) - 1)


def test_faults_are_off_by_default():
    prompt = "crash_on hang_on raise_on poison stuck fire"
    kinds = [type(output) for output in run(replace(JOB, prompt=prompt, images=(b"x",)))]
    assert kinds == [Progress] + [Delta] * 6 + [Done]
