"""The pipe's frames carry all that is said, and nothing is lost on the way through JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ccs_broker.contract import Sampling
from ccs_workers.engines import frames
from ccs_workers.engines.protocol import (
    Delta,
    EngineInfo,
    EngineJob,
    Failed,
    MemoryUse,
    Progress,
    Resume,
    Sized,
)

JOB = EngineJob(
    key="k",
    prompt="p",
    sampling=Sampling(repetition_penalty=1.25),
    seed=2**63 - 1,
    images=(b"i", b""),
    audio=(b"a",),
    resume=Resume(text="t", token_ids=(1, 2), progress=({"image": 1},)),
    score=-1.5,
    floor=True,
    memory_bytes=123,
)
INFO = EngineInfo(
    alias="m",
    modality="text",
    device="cpu",
    dtype="float32",
    weights_bytes=1,
    load_s=0.5,
    fixed_bytes=10,
    pool_bytes=4,
    need=(1.0, 0.5, 2.0, 0.0, 32.0),
)


def through_json(frame):
    return json.loads(json.dumps(frame))


@pytest.mark.parametrize(
    "job", [JOB, replace(JOB, memory_bytes=None), replace(JOB, memory_bytes=0, resume=None)]
)
def test_a_job(job):
    frame, blobs = frames.start_frame(job)
    assert frames.job_of(through_json(frame), blobs) == job


@pytest.mark.parametrize("info", [INFO, replace(INFO, fixed_bytes=0, pool_bytes=0, need=(0.0,) * 5)])
def test_what_an_engine_tells_of_itself(info):
    assert frames.info_of(through_json(frames.info_frame(info))) == info


def test_outputs():
    outputs = [
        ("a", Sized(need_bytes=2**40, step_bytes=2**39)),
        ("a", Delta(text="x", token_ids=(3,))),
        ("b", Progress(data={"window": 1})),
        ("b", Failed(code="OUT_OF_MEMORY", message="m")),
    ]
    assert frames.outputs_of(through_json(frames.out_frame(outputs))) == outputs


def test_a_grant():
    assert frames.grant_frame("k", 7) == {"do": "grant", "key": "k", "memory": 7}


def test_beats_tell_memory_where_it_is_known():
    use = MemoryUse(used_bytes=3, peak_bytes=9, allocated_bytes=1, reserved_bytes=2)
    assert frames.beat_frame(use) == {
        "do": "beat",
        "memory": {"used": 3, "peak": 9, "allocated": 1, "reserved": 2},
    }
    assert frames.memory_of(through_json(frames.beat_frame(use))) == use
    assert frames.memory_of({"do": "beat"}) is None
