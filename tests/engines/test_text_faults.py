"""What goes wrong in a text engine: forward passes that raise, dead devices, templates that refuse."""

from __future__ import annotations

import threading

import pytest
import torch

from ccs_broker.errors import ConfigurationError, EngineLostError
from ccs_workers.engines.protocol import Done, Failed
from ccs_workers.engines.text import TextEngine
from ccs_workers.engines.text.engine import EXIT_BROKEN
from tests.engines.tiny import CHAT, END_ID, Collector, build, spec_of

pytestmark = pytest.mark.engines

PROMPTS = ["one", "two words", "three", "four"]
#: Stands in no other prompt, and the models never write it.
POISON = "\x00"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def jobs(folder):
    collector = Collector()
    collector.broken = threading.Event()
    collector.codes = []

    def on_broken(code):
        collector.codes.append(code)
        collector.broken.set()

    collector.engine = TextEngine(spec_of(folder), collector.emit, on_broken=on_broken)
    collector.engine.load()
    yield collector
    collector.engine.close()


def spoil(jobs: Collector, monkeypatch, poison) -> None:
    """Let ``poison`` act on every forward pass that reads the poisoned prompt."""
    model = jobs.engine._loaded.model
    forward = model.forward
    poison_id = jobs.engine._vocabulary.encode(POISON)[0]

    def spoiled(*args, input_ids, **keys):
        if (input_ids == poison_id).any():
            return poison(lambda: forward(*args, input_ids=input_ids, **keys))
        return forward(*args, input_ids=input_ids, **keys)

    monkeypatch.setattr(model, "forward", spoiled)


def raising(error: BaseException):
    def poison(run):
        raise error

    return poison


def not_a_number(run):
    output = run()
    output.logits = output.logits * torch.nan
    return output


@pytest.mark.parametrize(
    ("poison", "code"),
    [
        (raising(RuntimeError("secret of the prompt")), "ENGINE_FAILED"),
        (raising(torch.OutOfMemoryError("no more")), "OUT_OF_MEMORY"),
        (raising(RuntimeError("DefaultCPUAllocator: can't allocate memory")), "OUT_OF_MEMORY"),
        (not_a_number, "ENGINE_FAILED"),
    ],
    ids=["raises", "out of memory", "out of memory on a CPU", "not finite"],
)
def test_a_job_that_breaks_the_forward_pass_fails_alone(jobs, monkeypatch, poison, code):
    how = {"max_new_tokens": 24, "temperature": 0.9, "seed": 4}
    alone = [jobs.run(f"alone {n}", prompt, **how) for n, prompt in enumerate(PROMPTS)]
    spoil(jobs, monkeypatch, poison)
    for n, prompt in enumerate(PROMPTS):
        jobs.start(str(n), prompt, **how)
    jobs.start("bad", POISON, **how)
    failed = jobs.end("bad")
    assert isinstance(failed, Failed)
    assert failed.code == code
    assert "secret" not in failed.message
    for n, tokens in enumerate(alone):
        assert isinstance(jobs.end(str(n)), Done)
        assert jobs.ids(str(n)) == tokens
    assert jobs.run("after", PROMPTS[0], **how) == alone[0]
    assert jobs.codes == []


def test_two_bad_jobs_among_good_ones(jobs, monkeypatch):
    alone = [jobs.run(f"alone {n}", prompt, max_new_tokens=30) for n, prompt in enumerate(PROMPTS)]
    spoil(jobs, monkeypatch, raising(ValueError("-")))
    jobs.start("bad 1", POISON)
    for n, prompt in enumerate(PROMPTS):
        jobs.start(str(n), prompt, max_new_tokens=30)
    jobs.start("bad 2", f"also {POISON}")
    assert [jobs.end(f"bad {n}").code for n in (1, 2)] == ["ENGINE_FAILED"] * 2
    for n, tokens in enumerate(alone):
        assert isinstance(jobs.end(str(n)), Done)
        assert jobs.ids(str(n)) == tokens


def test_an_engine_that_can_only_fail_ends_its_process(jobs, monkeypatch):
    spoil(jobs, monkeypatch, raising(RuntimeError("device-side assert")))
    for n in range(8):
        jobs.start(str(n), POISON)
    assert jobs.broken.wait(20)
    assert jobs.codes == [EXIT_BROKEN]
    with pytest.raises(EngineLostError):
        jobs.start("late", "hello")


def test_a_dead_device_ends_the_process_at_once(jobs, monkeypatch):
    spoil(jobs, monkeypatch, raising(RuntimeError("illegal access")))
    monkeypatch.setattr(TextEngine, "_new_loop", raising(RuntimeError("illegal access")))
    jobs.start("a", POISON)
    jobs.start("b", "innocent", max_new_tokens=50)
    assert jobs.broken.wait(20)
    assert jobs.codes == [EXIT_BROKEN]
    # Not its fault: it goes on in another process.
    assert jobs.last("b") is None


def test_a_fault_in_one_jobs_text_ends_that_job_alone(jobs, monkeypatch):
    make = jobs.engine._vocabulary.detokenizer

    class Faulty:
        def push(self, ids):
            raise KeyError("secret")

        def finish(self):
            return ""

    monkeypatch.setattr(jobs.engine._vocabulary, "detokenizer", Faulty)
    jobs.start("bad", "hello")
    monkeypatch.setattr(jobs.engine._vocabulary, "detokenizer", make)
    jobs.start("good", "hello")
    assert jobs.end("bad").code == "INTERNAL"
    assert isinstance(jobs.end("good"), Done)
    assert "secret" not in jobs.last("bad").message


def test_half_precision_says_that_it_is_not_reproducible(folder):
    jobs = Collector()
    jobs.engine = TextEngine(spec_of(folder, dtype="bfloat16"), jobs.emit)
    assert jobs.engine.load().dtype == "bfloat16"
    try:
        jobs.run("half", "hello")
        assert jobs.last("half").data == {"reproducible": False}
    finally:
        jobs.engine.close()


@pytest.fixture
def chat_folder(tmp_path):
    return build("llama", tmp_path, chat_template=CHAT, context=256)


@pytest.mark.parametrize(
    ("options", "rendered"),
    [
        ({}, "[user]hello[assistant]"),
        ({"system": "Be brief."}, "[system]Be brief.[user]hello[assistant]"),
        ({"chat": False}, "hello"),
    ],
)
def test_prompts_go_through_the_chat_template(chat_folder, options, rendered):
    jobs = Collector()
    jobs.engine = TextEngine(spec_of(chat_folder, options=options), jobs.emit)
    jobs.engine.load()
    try:
        jobs.run("chat", "hello", max_new_tokens=2)
        assert jobs.last("chat").usage.prompt_tokens == len(rendered)
        ids = jobs.engine._vocabulary.encode("hello")
        assert jobs.engine._vocabulary._decode(ids) == rendered
    finally:
        jobs.engine.close()


def test_a_template_that_refuses_system_messages_is_met_at_load(tmp_path):
    template = "{{ raise_exception('no system') if messages[0].role == 'system' else messages[0].content }}"
    engine = TextEngine(
        spec_of(build("llama", tmp_path, chat_template=template), options={"system": "x"}),
        lambda key, output: None,
    )
    with pytest.raises(ConfigurationError, match="chat template fails"):
        engine.load()


def test_a_system_message_needs_a_template(folder):
    engine = TextEngine(spec_of(folder, options={"system": "x"}), lambda key, output: None)
    with pytest.raises(ConfigurationError, match="needs 'chat'"):
        engine.load()


def test_the_end_token_ends_and_leaves_no_text(tmp_path):
    folder = build("llama", tmp_path)
    jobs = Collector()
    jobs.engine = TextEngine(spec_of(folder), jobs.emit)
    jobs.engine.load()
    try:
        tokens = jobs.run("whole", "hello", max_new_tokens=12)
        # Some token that comes later, and not before, becomes an end token as well.
        end = next(n for n, token in enumerate(tokens) if n >= 2 and token not in tokens[:n])
        object.__setattr__(jobs.engine._loaded, "end_ids", frozenset({END_ID, tokens[end]}))
        jobs.run("short", "hello", max_new_tokens=12)
        assert jobs.ids("short") == tokens[: end + 1]
        assert jobs.last("short").finish_reason == "end"
        assert jobs.last("short").usage.completion_tokens == end + 1
        assert jobs.text("whole").startswith(jobs.text("short"))
        whole = jobs.engine._vocabulary._decode(tokens[:end])
        assert jobs.text("short") in {whole, whole.removesuffix("\ufffd")}
    finally:
        jobs.engine.close()


def test_smollm2_knows_the_capital_of_france(models_dir):
    jobs = Collector()
    spec = spec_of(models_dir / "smollm2", options={"max_batch": 16, "kv_tokens": 4096})
    jobs.engine = TextEngine(spec, jobs.emit)
    jobs.engine.load()
    try:
        jobs.run("paris", "What is the capital of France?", max_new_tokens=32)
        assert "Paris" in jobs.text("paris")
        assert jobs.last("paris").finish_reason == "end"
    finally:
        jobs.engine.close()
