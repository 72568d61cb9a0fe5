"""The text engine on tiny models with random weights: same tokens in any company, clean ends, no leaks."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ccs_broker.errors import ContextTooLongError, InternalError, InvalidInputError
from ccs_workers.engines.protocol import Delta, Done
from ccs_workers.engines.text import TextEngine
from tests.engines.tiny import CONTEXT, Collector, build, spec_of
from tests.helpers import wait_until

pytestmark = pytest.mark.engines

PROMPTS = ["a", "the quick brown fox", "日本語 text", "x" * 40, "zwei Wörter", "0123456789", "?!", "end"]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    return build(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def engine(folder):
    collector = Collector()
    collector.engine = TextEngine(spec_of(folder), collector.emit)
    collector.info = collector.engine.load()
    yield collector
    collector.engine.close()


@pytest.fixture
def jobs(engine, request):
    """The shared engine, with nothing left over from other tests and nothing left behind."""
    engine.outputs.clear()
    engine.hook = lambda key, output: None
    yield engine
    wait_until(lambda: room_is_free(engine.engine), message="room for keys and values leaked")


def room_is_free(engine: TextEngine) -> bool:
    cache = engine._loop._manager.batch_processor.cache
    cache.pool.try_to_free_sectors()
    return cache.pool.num_free_sectors == cache.num_sectors


def generated(folder, prompt: str, count: int, **how: object) -> list[int]:
    """Tokens by transformers' plain ``generate``, greedy with nothing else said, with the end token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([tokenizer.backend_tokenizer.encode(prompt).ids])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0, **how
    )
    return out[0, ids.shape[1] :].tolist()


def test_what_it_tells_of_itself(engine):
    info = engine.info
    assert (info.alias, info.modality, info.device, info.dtype) == ("tiny", "text", "cpu", "float32")
    assert info.context_tokens == CONTEXT
    # Also the weights that are packed, and so no parameters any more.
    held = engine.engine._loaded.model.parameters()
    assert info.weights_bytes > sum(weight.numel() * weight.element_size() for weight in held)


def test_greedy_tokens_are_those_of_generate_alone_and_in_any_order(jobs, folder):
    expected = [generated(folder, prompt, 16) for prompt in PROMPTS]
    assert [jobs.run(f"alone {n}", prompt) for n, prompt in enumerate(PROMPTS)] == expected
    for turn in (PROMPTS, PROMPTS[::-1], PROMPTS[3:] + PROMPTS[:3]):
        keys = {prompt: f"{turn[0]} {prompt}" for prompt in turn}
        for prompt, key in keys.items():
            jobs.start(key, prompt)
        assert [isinstance(jobs.end(key), Done) for key in keys.values()] == [True] * 8
        assert [jobs.ids(keys[prompt]) for prompt in PROMPTS] == expected


def test_drawn_tokens_are_the_same_alone_and_among_eight(jobs):
    hows = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 0.9, "top_k": 50, "top_p": 0.8},
    ]
    plans = [(prompt, n, hows[n % 4]) for n, prompt in enumerate(PROMPTS)]
    alone = [jobs.run(f"a{n}", prompt, seed=n, **how) for prompt, n, how in plans]
    for prompt, n, how in plans:
        jobs.start(f"b{n}", prompt, seed=n, **how)
    for _, n, _ in plans:
        jobs.end(f"b{n}")
    assert [jobs.ids(f"b{n}") for _, n, _ in plans] == alone
    assert jobs.run("again", PROMPTS[0], seed=0, **hows[0]) == alone[0]
    assert jobs.run("other", PROMPTS[0], seed=1, **hows[0]) != alone[0]


@pytest.mark.parametrize("penalty", [1.3, 0.7, 10.0])
def test_repeated_tokens_count_as_they_do_in_generate_alone_and_among_others(jobs, folder, penalty):
    """Over prompt and answer alike; neighbors without it, or with another one, change nothing."""
    expected = [generated(folder, prompt, 16, repetition_penalty=penalty) for prompt in PROMPTS]
    plain = [generated(folder, prompt, 16) for prompt in PROMPTS]
    assert expected != plain
    how = {"repetition_penalty": penalty}
    alone = [jobs.run(f"{penalty} alone {n}", prompt, **how) for n, prompt in enumerate(PROMPTS)]
    assert alone == expected
    for n, prompt in enumerate(PROMPTS[:4]):
        jobs.start(f"{penalty} {n}", prompt, **how)
        jobs.start(f"plain {n}", prompt)
    assert all(isinstance(jobs.end(f"{kind} {n}"), Done) for kind in (penalty, "plain") for n in range(4))
    assert [jobs.ids(f"{penalty} {n}") for n in range(4)] == expected[:4]
    assert [jobs.ids(f"plain {n}") for n in range(4)] == plain[:4]


def test_what_a_job_needs_is_its_length_in_whole_pages(jobs):
    """Keys and values of 2 layers, 32 numbers each in llama's two heads or gpt2's four, in pages of 32 tokens."""
    room = jobs.engine._room
    heads = room.bytes_per_token / (2 * 2 * 8 * 4)
    assert heads in {2, 4}
    jobs.run("20 and 12", "x" * 20, max_new_tokens=12)
    jobs.run("20 and 13", "x" * 20, max_new_tokens=13)
    page_bytes = 32 * room.bytes_per_token
    assert (jobs.sizes["20 and 12"], jobs.sizes["20 and 13"]) == (page_bytes, 2 * page_bytes)
    info = jobs.info
    assert info.pool_bytes == room.units * room.unit_bytes >= 1024 * room.bytes_per_token
    assert info.fixed_bytes > info.pool_bytes + info.weights_bytes
    assert info.need == (
        room.bytes_per_token + page_bytes / 2,
        room.bytes_per_token / 2,
        room.bytes_per_token,
        0,
        0,
    )


def test_a_grant_changes_nothing_of_a_text_job(jobs):
    alone = jobs.run("alone", "the quick brown fox")
    jobs.start("granted", "the quick brown fox")
    jobs.engine.grant("granted", 1)
    jobs.engine.grant("nobody", 1)
    jobs.end("granted")
    assert jobs.ids("granted") == alone


def test_the_padding_side_of_the_tokenizer_is_nobodys_business(jobs, folder):
    expected = [generated(folder, prompt, 16) for prompt in PROMPTS]
    tokenizer, over = jobs.engine._vocabulary._tokenizer, threading.Event()

    def flip():
        for side in itertools.cycle(["left", "right"]):
            if over.is_set():
                return
            tokenizer.padding_side = side
            over.wait(0.001)

    flipper = threading.Thread(target=flip)
    flipper.start()
    try:
        for n, prompt in enumerate(PROMPTS):
            jobs.start(str(n), prompt)
        for n, tokens in enumerate(expected):
            jobs.end(str(n))
            assert jobs.ids(str(n)) == tokens
    finally:
        over.set()
        flipper.join()


def test_deltas_joined_are_the_text_of_all_tokens(jobs, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for n, prompt in enumerate(PROMPTS):
        ids = jobs.run(str(n), prompt, max_new_tokens=20, temperature=1.0, seed=n)
        done = jobs.last(str(n))
        assert done.usage.completion_tokens == len(ids)
        assert done.usage.prompt_tokens == len(prompt.encode())
        assert all(output.token_ids for output in jobs.outputs[str(n)][:-1])
        whole = tokenizer.decode(ids, skip_special_tokens=True)
        # A character that the limit cut off is dropped; it decodes to one replacement character.
        assert jobs.text(str(n)) in {whole, whole.removesuffix("\ufffd")}


def test_one_delta_a_step(jobs):
    ids = jobs.run("a", "hello", max_new_tokens=12)
    assert [output.token_ids for output in jobs.outputs["a"][:-1]] == [(number,) for number in ids]


def test_longer_than_the_context_is_refused_before_the_model_is_touched(jobs, monkeypatch):
    calls = []
    forward = jobs.engine._loaded.model.forward
    monkeypatch.setattr(
        jobs.engine._loaded.model, "forward", lambda *args, **keys: calls.append(1) or forward(*args, **keys)
    )
    for prompt, count in (("x" * 80, 1), ("x" * 60, 20), ("x" * 64, 1)):
        with pytest.raises(ContextTooLongError, match=rf"{len(prompt)} .* {count} .* {CONTEXT}"):
            jobs.start("long", prompt, max_new_tokens=count)
    with pytest.raises(InvalidInputError):
        jobs.start("empty", "")
    with pytest.raises(InvalidInputError, match="surrogate"):
        jobs.start("half", "\ud83d")
    assert calls == []
    assert jobs.run("all of it", "x" * 60, max_new_tokens=4)
    assert calls


def test_a_stop_string_ends_the_text_and_nothing_else(jobs):
    whole = jobs.run("whole", PROMPTS[1], max_new_tokens=30, temperature=0.8, seed=3)
    text = jobs.text("whole")
    stop = text[5:8]
    assert len(stop) == 3
    for n in range(4):
        jobs.start(f"mate {n}", PROMPTS[n], max_new_tokens=24)
    jobs.start("cut", PROMPTS[1], max_new_tokens=30, temperature=0.8, seed=3, stop=(stop, "never this"))
    done = jobs.end("cut")
    assert done.finish_reason == "stop"
    assert jobs.text("cut") == text[: text.index(stop)]
    assert jobs.ids("cut") == whole[: len(jobs.ids("cut"))]
    assert done.usage.completion_tokens == len(jobs.ids("cut")) < len(whole)
    for n in range(4):
        assert jobs.end(f"mate {n}").finish_reason == "length"


def test_what_only_began_like_a_stop_string_is_not_lost(jobs):
    jobs.run("whole", PROMPTS[1], max_new_tokens=10)
    text = jobs.text("whole")
    jobs.run("held", PROMPTS[1], max_new_tokens=10, stop=(text[-1] + "and more",))
    assert jobs.text("held") == text
    assert jobs.last("held").finish_reason == "length"


def test_cancelling_one_of_four_leaves_the_others_as_they_were(jobs):
    alone = [jobs.run(f"alone {n}", prompt, max_new_tokens=20) for n, prompt in enumerate(PROMPTS[:3])]
    reached = threading.Event()
    jobs.hook = lambda key, output: reached.set() if key == "gone" else None
    jobs.start("gone", "four", max_new_tokens=50)
    for n, prompt in enumerate(PROMPTS[:3]):
        jobs.start(f"mate {n}", prompt, max_new_tokens=20)
    assert reached.wait(20)
    jobs.engine.cancel("gone")
    done = jobs.last("gone")
    assert done.finish_reason == "cancelled"
    assert 1 <= done.usage.completion_tokens < 50
    assert done.usage.completion_tokens == len(jobs.ids("gone"))
    for n, tokens in enumerate(alone):
        jobs.end(f"mate {n}")
        assert jobs.ids(f"mate {n}") == tokens
    assert jobs.last("gone") is done


def test_cancelling_from_within_a_delta(jobs):
    def hook(key, output):
        if isinstance(output, Delta):
            jobs.engine.cancel(key)

    jobs.hook = hook
    jobs.start("one", "hello", max_new_tokens=1)
    jobs.start("many", "hello", max_new_tokens=20)
    assert jobs.end("one").finish_reason == "cancelled"
    assert jobs.end("many").finish_reason == "cancelled"
    assert [len(jobs.ids(key)) for key in ("one", "many")] == [1, 1]


def test_cancelling_what_isnt_there_or_waits(jobs):
    jobs.engine.cancel("never heard of it")
    for n in range(9):
        jobs.start(str(n), "hello", max_new_tokens=40)
    # The ninth has no place yet.
    jobs.engine.cancel("8")
    assert jobs.last("8").usage.completion_tokens == 0
    assert jobs.ids("8") == []
    for n in range(8):
        assert jobs.end(str(n)).usage.completion_tokens == 40


def test_a_key_is_used_once(jobs):
    jobs.start("twice", "hello", max_new_tokens=30)
    with pytest.raises(InternalError):
        jobs.start("twice", "hello")
    jobs.end("twice")


def test_more_jobs_than_places_and_room_all_end_as_they_would_alone(folder):
    jobs = Collector()
    # Room for about three of them at a time, and never for all places.
    jobs.engine = TextEngine(
        spec_of(folder, options={"max_batch": 4, "kv_tokens": 192, "step_tokens": 16}), jobs.emit
    )
    jobs.engine.load()
    try:
        expected = {prompt: jobs.run(f"alone {prompt}", prompt, max_new_tokens=20) for prompt in PROMPTS}
        for n, prompt in enumerate(PROMPTS * 3):
            jobs.start(f"{n}", prompt, max_new_tokens=20)
        for n, prompt in enumerate(PROMPTS * 3):
            assert jobs.end(f"{n}").finish_reason in {"length", "end"}
            assert jobs.ids(f"{n}") == expected[prompt]
        wait_until(lambda: room_is_free(jobs.engine))
    finally:
        jobs.engine.close()


def test_an_idle_engine_costs_next_to_nothing_and_answers_at_once(jobs):
    jobs.run("warm", "a", max_new_tokens=2)
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.1
    waits = []
    for n in range(9):
        began = time.perf_counter()
        jobs.start(str(n), "a", max_new_tokens=1)
        jobs.end(str(n))
        waits.append(time.perf_counter() - began)
    # The manager looks around every 100 ms; a new job must not wait for that.
    assert sorted(waits)[4] < 0.05


def test_close_ends_quietly_and_takes_no_more(folder):
    jobs = Collector()
    jobs.engine = TextEngine(spec_of(folder), jobs.emit)
    jobs.engine.load()
    reached = threading.Event()
    jobs.hook = lambda key, output: reached.set()
    jobs.start("cut", "hello", max_new_tokens=50)
    assert reached.wait(20)
    jobs.engine.close()
    jobs.engine.close()
    count = len(jobs.outputs["cut"])
    assert jobs.last("cut") is None
    assert len(jobs.outputs["cut"]) == count
    with pytest.raises(Exception, match="ENGINE_LOST"):
        jobs.start("late", "hello")
