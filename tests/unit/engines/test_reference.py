"""The reference engine keeps the pace and the order of the modelled device, and resumes like any engine."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ccs_broker.contract import Modality, Sampling
from ccs_broker.errors import ConfigurationError, ContextTooLongError, EngineError
from ccs_broker.simulate.model import REFERENCE
from ccs_workers.engines.protocol import Delta, EngineJob, Resume
from ccs_workers.engines.simulated import ReferenceEngine, SimulatedEngine, digest_of, make_engine, text_of
from ccs_workers.models.spec import ModelSpec
from tests.media_jobs import Outputs
from tests.resuming import check_every_cut

JOB = EngineJob(key="a", prompt="one two three", sampling=Sampling(max_new_tokens=8), seed=7)
LONG = replace(JOB, key="long", prompt="x " * 2048 * 5)


@pytest.fixture
def device(tmp_path):
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"about": "the reference", "iteration_base_s": REFERENCE.iteration_base_s}))
    return path


class Clocked(Outputs):
    """Outputs with the seconds at which each came."""

    def __init__(self):
        super().__init__()
        self.began = time.monotonic()
        self.times = {}

    def emit(self, key, output):
        self.times.setdefault(key, []).append((time.monotonic() - self.began, type(output).__name__))
        super().emit(key, output)

    def first(self, key):
        return next(at for at, kind in self.times[key] if kind == "Delta")

    def last(self, key):
        return self.times[key][-1][0]


@contextmanager
def running(device, **options):
    spec = ModelSpec(
        alias="sim", modality=Modality.TEXT, engine="simulated", options={"reference": str(device), **options}
    )
    outputs = Clocked()
    engine = make_engine(spec, outputs.emit)
    engine.load()
    outputs.began = time.monotonic()
    try:
        yield engine, outputs
    finally:
        engine.close()


def test_the_option_chooses_the_engine(device):
    spec = ModelSpec(alias="sim", modality=Modality.TEXT, engine="simulated")
    assert isinstance(make_engine(spec, lambda key, output: None), SimulatedEngine)
    with running(device) as (engine, _):
        assert isinstance(engine, ReferenceEngine)
    with pytest.raises(ConfigurationError, match="device file"):
        make_engine(replace(spec, options={"reference": "/nowhere.json"}), lambda key, output: None)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_job_alone_takes_what_it_takes_the_device_alone(device, scale):
    job = replace(JOB, images=(b"x",) * 10, audio=(b"y" * 32_000 * 8,), prompt="x " * 1000)
    demand = REFERENCE.demand(images=10, audio_s=8, context_tokens=1000, new_tokens=8)
    first_s = REFERENCE.alone_s(demand)
    with running(device, time_scale=scale) as (engine, outputs):
        engine.start(job)
        done = outputs.done("a", 10)
    assert outputs.first("a") * scale == pytest.approx(first_s, abs=0.02 * scale)
    whole_s = first_s + 7 * (REFERENCE.iteration_base_s + REFERENCE.decode_s_per_sequence)
    assert outputs.last("a") * scale == pytest.approx(whole_s, abs=0.02 * scale)
    assert done.usage.device_s * scale == pytest.approx(whole_s)
    assert done.first_device_s * scale == pytest.approx(first_s)
    assert (done.finish_reason, done.usage.completion_tokens, done.usage.audio_s) == ("length", 8, 8.0)
    assert outputs.text("a") == text_of(digest_of(job), 8)


def test_device_time_of_all_jobs_adds_up_to_the_time_the_device_worked(device):
    with running(device) as (engine, outputs):
        for number in range(12):
            engine.start(replace(JOB, key=str(number), prompt="x " * 300 * number))
        device_s = sum(outputs.done(str(number), 10).usage.device_s for number in range(12))
        wall_s = max(outputs.last(str(number)) for number in range(12))
    assert device_s == pytest.approx(wall_s, rel=0.1)


def test_jobs_start_in_the_order_of_their_scores(device):
    with running(device, time_scale=0.5) as (engine, outputs):
        engine.start(replace(LONG, key="first", score=5))
        outputs_of_later = {"slow": 9.0, "urgent": 1.0, "middle": 3.0}
        for key, score in outputs_of_later.items():
            engine.start(replace(LONG, key=key, score=score))
        for key in ("first", *outputs_of_later):
            outputs.done(key, 30)
    assert sorted(outputs.times, key=outputs.first) == ["urgent", "middle", "first", "slow"]


def test_a_job_of_the_floor_gets_its_share_however_much_is_more_urgent(device):
    with running(device) as (engine, outputs):
        for number in range(6):
            engine.start(replace(LONG, key=str(number), score=0))
        small = replace(JOB, prompt="x " * 400, score=9)
        engine.start(replace(small, key="floor", floor=True))
        engine.start(replace(small, key="other", score=8))
        outputs.done("floor", 30)
        outputs.done("other", 30)
    assert outputs.first("floor") < outputs.first("5") < outputs.first("other")


def test_a_continued_job_emits_what_is_left(device):
    with running(device, time_scale=100) as (engine, outputs):
        engine.start(JOB)
        outputs.end("a", 10)
        whole = outputs.of("a")

    def again(job):
        with running(device, time_scale=100) as (engine, outputs):
            engine.start(job)
            outputs.end(job.key, 10)
            return [strip(output) for output in outputs.of(job.key)]

    check_every_cut([strip(output) for output in whole], JOB, again)


def strip(output):
    """Without what depends on how much of the job this attempt did."""
    if isinstance(output, Delta):
        return output
    return replace(output, usage=output.usage.model_copy(update={"device_s": None}), first_device_s=None)


def test_what_can_not_be_is_refused(device):
    with running(device, context_tokens=9) as (engine, outputs):
        with pytest.raises(ContextTooLongError):
            engine.start(JOB)
        with pytest.raises(EngineError, match="continued"):
            engine.start(replace(JOB, prompt="", resume=Resume(text="something else", token_ids=(0,))))
        assert outputs.all == []


def test_a_cancelled_job_leaves_the_device_to_the_others(device):
    with running(device) as (engine, outputs):
        engine.start(replace(JOB, key="b", sampling=Sampling(max_new_tokens=5000)))
        engine.start(replace(LONG, score=2, prompt="x " * 200_000))
        outputs.wait_for(lambda: outputs.text("b"), 10)
        for key in ("b", "long", "unknown"):
            engine.cancel(key)
        done, waiting = outputs.done("b", 10), outputs.done("long", 10)
        assert done.finish_reason == waiting.finish_reason == "cancelled"
        assert done.usage.completion_tokens == len(outputs.text("b").split())
        assert waiting.usage.completion_tokens == 0
        assert waiting.first_device_s is None
        engine.start(JOB)
        assert outputs.done("a", 10).finish_reason == "length"
