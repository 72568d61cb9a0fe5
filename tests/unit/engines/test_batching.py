"""The base of the batching engines: what arrives together runs together, and nobody pays for another's fault."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from dataclasses import replace

import pytest

from ccs_broker.contract import Modality, Usage
from ccs_broker.errors import EngineLostError, InternalError, InvalidImageError, InvalidInputError
from ccs_workers.engines.batching import BatchEngine
from ccs_workers.engines.course import Ask
from ccs_workers.engines.protocol import Delta, Done, EngineInfo, Failed, Sized
from ccs_workers.models.spec import ModelSpec
from tests.helpers import wait_until
from tests.media_jobs import Outputs, vision_job

SPEC = ModelSpec(alias="double", modality=Modality.VISION, engine="double")


class Double(BatchEngine):
    """Echoes each of a job's payloads; what a payload says can go wrong, goes wrong there."""

    def __init__(self, emit, *, size=4):
        super().__init__(SPEC, emit)
        self.size = size
        self.batches = []
        self.need_bytes = 0
        #: The model answers only while this is set.
        self.open = threading.Event()
        self.open.set()
        #: Set while the model runs.
        self.busy = threading.Event()

    def load(self):
        self._begin()
        return EngineInfo(
            alias="double", modality="vision", device="cpu", dtype="float32", weights_bytes=0, load_s=0.0
        )

    def _check(self, job):
        if b"bad header" in job.images:
            raise InvalidInputError("bad header")
        return Sized(need_bytes=self.need_bytes)

    def _largest_batch(self, kind):
        return self.size

    def _restore(self, course):
        raise NotImplementedError

    def _steps(self, course):
        for number, payload in enumerate(course.job.images, start=1):
            if payload == b"broken":
                raise InvalidImageError("broken")
            if payload == b"bug":
                raise ZeroDivisionError
            if payload == b"full":
                raise MemoryError
            if payload == b"pause":
                yield None
                continue
            kind, _, rest = payload.partition(b":")
            results = yield Ask(kind=kind.decode(), payloads=tuple(rest.split(b",")) if rest else ())
            for result in results:
                course.emit(Delta(text=result))
            course.usage = Usage(images=number)

    def _run(self, kind, pieces):
        self.busy.set()
        assert self.open.wait(30)
        payloads = [piece.payload.decode() for piece in pieces]
        self.batches.append((kind, payloads))
        if "raise" in payloads:
            raise RuntimeError
        if "exit" in payloads:
            raise SystemExit
        if "memory" in payloads:
            raise MemoryError
        if "lost" in payloads:
            return payloads[1:]
        return [f"<{payload}>" for payload in payloads]


@pytest.fixture
def outputs():
    return Outputs()


@pytest.fixture
def engine(outputs):
    made = Double(outputs.emit)
    made.load()
    yield made
    made.open.set()
    made.close()


def start_together(engine, outputs, jobs):
    """Let the model wait at a first job until all the others have arrived."""
    engine.open.clear()
    engine.busy.clear()
    engine.start(vision_job("first", b"x:first"))
    assert engine.busy.wait(10)
    for key, payloads in jobs.items():
        engine.start(vision_job(key, *payloads))
    engine.open.set()
    for key in jobs:
        outputs.end(key)
    return engine.batches[1:]


def test_what_has_arrived_together_runs_together(engine, outputs):
    batches = start_together(engine, outputs, {key: [f"x:{key}".encode()] for key in "abcdef"})

    assert batches == [("x", list("abcd")), ("x", list("ef"))]
    assert [outputs.text(key) for key in "abcdef"] == [f"<{key}>" for key in "abcdef"]


def test_kinds_do_not_mix(engine, outputs):
    batches = start_together(engine, outputs, {"a": [b"x:a"], "b": [b"y:b"], "c": [b"x:c"]})
    assert batches == [("x", ["a", "c"]), ("y", ["b"])]


def test_jobs_of_any_length_take_turns(engine, outputs):
    long = [f"x:{number}".encode() for number in range(6)]
    batches = start_together(engine, outputs, {"long": long, "short": [b"x:s"]})
    assert batches[:2] == [("x", ["0", "s"]), ("x", ["1"])]
    assert outputs.text("long") == "<0><1><2><3><4><5>"


def test_a_job_may_ask_for_several_at_once_and_gets_them_in_order(engine, outputs):
    batches = start_together(engine, outputs, {"a": [b"x:1,2,3"], "b": [b"x:4,5,6"]})
    assert batches == [("x", ["1", "2", "3", "4"]), ("x", ["5", "6"])]
    assert outputs.text("a") == "<1><2><3>"
    assert outputs.text("b") == "<4><5><6>"


def test_pauses_and_empty_asks_let_others_go_first(engine, outputs):
    jobs = {"slow": [b"pause", b"pause", b"x:", b"x:s"], "quick": [b"x:q"]}
    assert start_together(engine, outputs, jobs) == [("x", ["q"]), ("x", ["s"])]


@pytest.mark.parametrize(
    ("fault", "code"),
    [(b"x:raise", "ENGINE_FAILED"), (b"x:exit", "ENGINE_FAILED"), (b"x:memory", "OUT_OF_MEMORY")],
)
def test_one_that_raises_in_the_model_fails_alone(engine, outputs, fault, code):
    jobs = {"a": [b"x:a"], "bad": [fault], "c": [b"x:c"], "d": [b"x:d"]}
    batches = start_together(engine, outputs, jobs)

    assert isinstance(end := outputs.end("bad"), Failed)
    assert end.code == code
    assert [outputs.text(key) for key in "acd"] == ["<a>", "<c>", "<d>"]
    assert len(batches) <= 1 + 2 * 2 + 1


def test_all_that_raise_fail_and_nobody_else(engine, outputs):
    jobs = {"a": [b"x:raise"], "b": [b"x:b"], "c": [b"x:c"], "d": [b"x:raise"]}
    start_together(engine, outputs, jobs)
    assert [type(outputs.end(key)) for key in "abcd"] == [Failed, Done, Done, Failed]


@pytest.mark.parametrize(
    ("fault", "code"), [(b"broken", "INVALID_IMAGE"), (b"bug", "INTERNAL")], ids=["broken", "bug"]
)
def test_one_that_cannot_be_prepared_fails_alone(engine, outputs, fault, code):
    jobs = {"a": [b"x:a"], "bad": [fault], "c": [b"x:c"]}
    batches = start_together(engine, outputs, jobs)

    assert isinstance(end := outputs.end("bad"), Failed)
    assert end.code == code
    assert batches == [("x", ["a", "c"])]
    assert outputs.text("c") == "<c>"


def test_results_that_do_not_match_are_given_to_nobody(engine, outputs):
    start_together(engine, outputs, {"a": [b"x:a"], "lost": [b"x:lost"], "c": [b"x:c"]})
    assert outputs.text("a") == "<a>"
    assert outputs.text("c") == "<c>"
    assert isinstance(outputs.end("lost"), Failed)


def test_a_failed_job_says_nothing_of_the_fault(engine, outputs):
    engine.start(vision_job("a", b"x:raise"))
    assert outputs.end("a") == Failed(code="ENGINE_FAILED", message="the model raised RuntimeError")


def test_a_bad_header_is_refused_at_once(engine, outputs):
    with pytest.raises(InvalidInputError):
        engine.start(vision_job("a", b"bad header"))
    assert outputs.all == []


def test_cancel_takes_effect_before_the_next_piece(engine, outputs):
    engine.open.clear()
    engine.start(vision_job("a", b"x:1", b"x:2", b"x:3"))
    assert engine.busy.wait(10)
    engine.cancel("a")
    engine.open.set()

    assert outputs.end("a") == Done(finish_reason="cancelled", usage=Usage())
    assert engine.batches == [("x", ["1"])]


def test_cancel_keeps_what_was_told_and_leaves_mates_alone(engine, outputs):
    def cancel_after_first_delta(key, output):
        if key == "b" and isinstance(output, Delta):
            engine.cancel("b")

    outputs.hook = cancel_after_first_delta
    jobs = {key: [f"x:{key}{n}".encode() for n in range(3)] for key in "abcd"}
    start_together(engine, outputs, jobs)

    assert outputs.end("b").finish_reason == "cancelled"
    assert outputs.end("b").usage == Usage(images=1)
    assert outputs.text("b") == "<b0>"
    assert [outputs.text(key) for key in "acd"] == [f"<{k}0><{k}1><{k}2>" for k in "acd"]


def test_cancel_before_the_start_of_work_and_of_strangers(engine, outputs):
    engine.open.clear()
    engine.start(vision_job("first", b"x:first"))
    assert engine.busy.wait(10)
    engine.start(vision_job("second", b"x:second"))
    engine.cancel("second")
    engine.cancel("nobody")
    engine.open.set()

    assert outputs.end("second").finish_reason == "cancelled"
    assert outputs.done("first").finish_reason == "end"
    assert engine.batches == [("x", ["first"])]
    engine.cancel("first")


def granted(key, memory_bytes, *payloads):
    return replace(vision_job(key, *payloads), memory_bytes=memory_bytes)


def test_a_job_takes_no_step_before_it_is_granted_what_it_needs(engine, outputs):
    engine.need_bytes = 100
    engine.start(granted("held", 99, b"x:held"))
    engine.start(granted("free", 100, b"x:free"))
    outputs.done("free")
    engine.grant("held", 99)
    engine.grant("nobody", 1000)
    engine.start(vision_job("unbound", b"x:unbound"))
    outputs.done("unbound")
    assert outputs.of("held") == []
    assert outputs.sizes == {"held": 100, "free": 100, "unbound": 100}
    engine.grant("held", 100)
    assert outputs.done("held").finish_reason == "end"
    assert engine.batches == [("x", ["free"]), ("x", ["unbound"]), ("x", ["held"])]


def test_a_held_job_can_be_cancelled_and_closed(engine, outputs):
    engine.need_bytes = 100
    engine.start(granted("a", 0, b"x:a"))
    engine.start(granted("b", 0, b"x:b"))
    engine.cancel("a")
    assert outputs.end("a").finish_reason == "cancelled"
    engine.close()
    assert not engine._thread.is_alive()
    assert (engine.batches, outputs.of("b")) == ([], [])


def test_a_full_memory_halves_the_batch_and_names_what_the_one_needs(engine, outputs):
    engine.need_bytes = 700
    jobs = {key: [f"x:{key}".encode()] for key in ("a", "b", "memory", "c")}
    assert start_together(engine, outputs, jobs)[0] == ("x", ["a", "b", "memory", "c"])
    assert outputs.end("memory") == Failed(
        code="OUT_OF_MEMORY",
        message="the device's memory did not hold this job, which needs 700 bytes beside its model",
    )
    assert [outputs.text(key) for key in "abc"] == ["<a>", "<b>", "<c>"]


def test_preparing_a_job_may_find_the_memory_full(engine, outputs):
    engine.start(vision_job("a", b"full"))
    assert outputs.end("a").code == "OUT_OF_MEMORY"


def test_nothing_of_a_job_is_kept_when_it_has_ended(engine, outputs):
    """However it ended, and while the engine waits for the next one."""
    courses = []
    for key, payload in (("done", b"x:1"), ("failed", b"x:raise"), ("full", b"x:memory"), ("broken", b"bug")):
        engine.open.clear()
        engine.start(vision_job(key, payload))
        courses.append(weakref.ref(engine._courses[key]))
        engine.open.set()
        outputs.end(key)
    wait_until(lambda: not any(course() for course in courses), message="a course is held on to")


def test_keys_are_unique_while_jobs_run(engine, outputs):
    engine.open.clear()
    engine.start(vision_job("a", b"x:a"))
    with pytest.raises(InternalError):
        engine.start(vision_job("a", b"x:a"))
    engine.open.set()
    outputs.done("a")
    outputs.all.clear()
    engine.start(vision_job("a", b"x:again"))
    outputs.done("a")
    assert outputs.text("a") == "<again>"


def test_close_ends_the_thread_and_silences_what_runs(outputs):
    engine = Double(outputs.emit)
    engine.load()
    engine.open.clear()
    engine.start(vision_job("a", b"x:1", b"x:2"))
    assert engine.busy.wait(10)
    closer = threading.Thread(target=engine.close)
    closer.start()
    engine.open.set()
    closer.join(10)

    assert not engine._thread.is_alive()
    assert outputs.all == []
    with pytest.raises(EngineLostError):
        engine.start(vision_job("b", b"x:1"))


def test_batching_and_decoding_need_no_torch():
    code = """
import sys
import ccs_workers.engines.batching, ccs_workers.engines.media, ccs_workers.engines.options
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
