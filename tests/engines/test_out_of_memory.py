"""A device that runs out of memory: what fits in smaller batches succeeds, what doesn't fails alone and is let go."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ccs_broker.contract import Modality
from ccs_workers.engines.batching import BatchEngine
from ccs_workers.engines.course import Ask
from ccs_workers.engines.faults import as_engine_error, is_out_of_memory, release
from ccs_workers.engines.protocol import Delta, Done, EngineInfo, Failed, Sized
from ccs_workers.engines.text import TextEngine
from ccs_workers.models.spec import ModelSpec
from tests.engines.tiny import Collector, build, spec_of
from tests.helpers import wait_until
from tests.media_jobs import Outputs, vision_job

pytestmark = pytest.mark.engines

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB; secret of the prompt")


class Summing(BatchEngine):
    """Adds up each picture's bytes; the device can hold so many pieces at once."""

    def __init__(self, emit, *, room: int) -> None:
        super().__init__(ModelSpec(alias="sum", modality=Modality.VISION, engine="sum"), emit)
        self.room = room
        self.batches: list[int] = []
        self.inputs: list[weakref.ref[torch.Tensor]] = []

    def load(self):
        return EngineInfo(
            alias="sum", modality="vision", device="cpu", dtype="float32", weights_bytes=0, load_s=0.0
        )

    def _check(self, job):
        return Sized(need_bytes=len(job.images[0]))

    def _largest_batch(self, kind):
        return 8

    def _restore(self, course):
        raise NotImplementedError

    def _steps(self, course):
        tensor = torch.tensor(list(course.job.images[0]), dtype=torch.float32)
        self.inputs.append(weakref.ref(tensor))
        (total,) = yield Ask(kind="sum", payloads=(tensor,))
        course.emit(Delta(text=str(total)))

    def _run(self, kind, pieces):
        self.batches.append(len(pieces))
        stacked = torch.stack([piece.payload for piece in pieces])
        self.inputs.append(weakref.ref(stacked))
        if len(pieces) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [int(row.sum()) for row in stacked]


def run_together(room: int, count: int) -> tuple[Summing, Outputs]:
    outputs = Outputs()
    engine = Summing(outputs.emit, room=room)
    engine.load()
    for number in range(count):
        engine.start(vision_job(str(number), bytes([number, 1, 2])))
    engine._begin()
    for number in range(count):
        outputs.end(str(number))
    return engine, outputs


@pytest.mark.parametrize(
    ("room", "batches"), [(8, [8]), (4, [8, 4, 4]), (1, [8, 4, 2, 1, 1, 2, 1, 1, 4, 2, 1, 1, 2, 1, 1])]
)
def test_a_batch_that_is_too_large_runs_in_smaller_ones(room, batches):
    engine, outputs = run_together(room, 8)
    assert engine.batches == batches
    assert [outputs.text(str(number)) for number in range(8)] == [str(number + 3) for number in range(8)]
    engine.close()


def test_what_fits_in_no_batch_fails_and_is_let_go():
    engine, outputs = run_together(0, 3)
    message = "the device's memory did not hold this job, which needs 3 bytes beside its model"
    assert [outputs.end(str(number)) for number in range(3)] == [
        Failed(code="OUT_OF_MEMORY", message=message)
    ] * 3
    wait_until(lambda: not any(tensor() is not None for tensor in engine.inputs), message="inputs are kept")
    engine.room = 8
    engine.start(vision_job("next", b"\x05"))
    assert isinstance(outputs.end("next"), Done)
    assert outputs.text("next") == "5"
    engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def jobs(folder):
    collector = Collector()
    collector.codes = []
    collector.engine = TextEngine(spec_of(folder), collector.emit, on_broken=collector.codes.append)
    collector.engine.load()
    yield collector
    collector.engine.close()


def fill(jobs: Collector, monkeypatch, times: int) -> list[weakref.ref[torch.Tensor]]:
    """Let so many forward passes run out of memory; return what they were given."""
    model = jobs.engine._loaded.model
    forward, inputs = model.forward, []

    def full(*args, input_ids, **keys):
        if len(inputs) >= times:
            return forward(*args, input_ids=input_ids, **keys)
        inputs.append(weakref.ref(input_ids))
        raise torch.OutOfMemoryError(str(FULL))

    monkeypatch.setattr(model, "forward", full)
    return inputs


def test_text_jobs_outlive_a_first_step_without_memory(jobs, monkeypatch):
    alone = [jobs.run(f"alone {n}", f"prompt {n}") for n in range(4)]
    inputs = fill(jobs, monkeypatch, 1)
    with jobs.engine._lock:
        for n in range(4):
            jobs.start(str(n), f"prompt {n}")
    ends = [jobs.end(str(n)) for n in range(4)]
    if len(ends) - sum(isinstance(end, Done) for end in ends):
        # Only one that was alone in the step can have failed for it.
        assert [end.code for end in ends if isinstance(end, Failed)] == ["OUT_OF_MEMORY"]
    assert [jobs.ids(str(n)) for n, end in enumerate(ends) if isinstance(end, Done)] == [
        tokens for tokens, end in zip(alone, ends, strict=True) if isinstance(end, Done)
    ]
    wait_until(lambda: not any(tensor() is not None for tensor in inputs), message="inputs are kept")


def test_text_jobs_that_never_have_memory_fail_each_and_the_engine_goes_on(jobs, monkeypatch):
    """Six in a row, where four crashes of another kind would end the process."""
    alone = jobs.run("alone", "prompt")
    inputs = fill(jobs, monkeypatch, 6)
    need_bytes = jobs.sizes["alone"]
    for n in range(6):
        jobs.start(str(n), "prompt")
        assert jobs.end(str(n)) == Failed(
            code="OUT_OF_MEMORY",
            message=f"the device's memory did not hold this job, which needs {need_bytes} bytes beside its model",
        )
    assert jobs.run("after", "prompt") == alone
    assert jobs.codes == []
    gc.collect()
    assert not any(tensor() is not None for tensor in inputs)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (FULL, True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_what_says_that_memory_is_used_up(error, memory):
    assert is_out_of_memory(error) == memory
    told = as_engine_error(error, need_bytes=12)
    assert (told.code == "OUT_OF_MEMORY") == memory
    assert ("12 bytes" in told.message) == memory
    assert "secret" not in told.message


def test_an_error_that_is_released_keeps_nothing_alive():
    def fail():
        tensor = torch.zeros(3)
        kept.append(weakref.ref(tensor))
        try:
            raise KeyError
        except KeyError as error:
            raise torch.OutOfMemoryError from error

    kept: list[weakref.ref[torch.Tensor]] = []
    try:
        fail()
    except torch.OutOfMemoryError as error:
        raised = error
    assert kept[0]() is not None
    release(raised)
    assert kept[0]() is None
