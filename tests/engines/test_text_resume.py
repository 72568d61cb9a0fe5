"""A text job that was cut off goes on as if it had not been: same tokens, same text, nothing twice."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Sampling
from ccs_broker.errors import EngineError
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Resume
from ccs_workers.engines.text import TextEngine
from tests.engines.tiny import Collector, build, spec_of

pytestmark = pytest.mark.engines

WAYS = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "stopped": {"stop": ("e", "\ufffd")},
    "penalized": {"repetition_penalty": 1.5},
    "penalized and drawn": {"repetition_penalty": 1.2, "temperature": 0.9, "top_k": 50},
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = build("llama", tmp_path_factory.mktemp("llama"))
    collector = Collector()
    collector.engine = TextEngine(spec_of(folder), collector.emit)
    collector.engine.load()
    yield collector
    collector.engine.close()


def start(jobs, key, sampling, resume=None):
    job = EngineJob(key=key, prompt="日本 go on", sampling=Sampling(**sampling), seed=9, resume=resume)
    jobs.engine.start(job)
    done = jobs.end(key)
    assert isinstance(done, Done), done
    return done


@pytest.mark.parametrize("way", WAYS)
def test_cut_after_every_step(jobs, way):
    sampling = {"max_new_tokens": 20, **WAYS[way]}
    whole = start(jobs, f"{way} whole", sampling)
    deltas = [output for output in jobs.outputs[f"{way} whole"] if isinstance(output, Delta)]
    text, ids = jobs.text(f"{way} whole"), jobs.ids(f"{way} whole")
    assert len(deltas) > 3
    for cut in range(len(deltas) + 1):
        before = Resume(
            text="".join(one.text for one in deltas[:cut]),
            token_ids=tuple(number for one in deltas[:cut] for number in one.token_ids),
        )
        key = f"{way} {cut}"
        done = start(jobs, key, sampling, before)
        assert before.text + jobs.text(key) == text
        assert list(before.token_ids) + jobs.ids(key) == ids
        assert (done.finish_reason, done.usage) == (whole.finish_reason, whole.usage)


def test_a_resumed_job_joins_others_without_changing_them(jobs):
    sampling = {"max_new_tokens": 20, "temperature": 1.0}
    start(jobs, "alone", sampling)
    ids, deltas = jobs.ids("alone"), [o for o in jobs.outputs["alone"] if isinstance(o, Delta)]
    for number in range(5):
        jobs.start(f"mate {number}", "another prompt", seed=number, max_new_tokens=30, temperature=1.0)
    half = Resume(text="".join(one.text for one in deltas[:8]), token_ids=tuple(ids[:8]))
    start(jobs, "resumed", sampling, half)
    assert ids[:8] + jobs.ids("resumed") == ids
    assert half.text + jobs.text("resumed") == jobs.text("alone")
    for number in range(5):
        jobs.end(f"mate {number}")
        again = jobs.run(
            f"mate again {number}", "another prompt", seed=number, max_new_tokens=30, temperature=1.0
        )
        assert jobs.ids(f"mate {number}") == again


def test_tokens_that_give_another_text_here_are_not_continued(jobs):
    resume = Resume(text="something else", token_ids=(65, 66))
    job = EngineJob(key="other", prompt="x", sampling=Sampling(max_new_tokens=5), seed=0, resume=resume)
    with pytest.raises(EngineError, match="another text"):
        jobs.engine.start(job)
