"""A job's trail: kept as a worker keeps it, cut where it should be, compared and audited."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Sampling, Usage
from ccs_broker.ledger import Claim
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed, Progress
from ccs_workers.publish.run import JobRun
from ccs_workers.verify.compare import audit, difference, places_of
from ccs_workers.verify.records import Check
from ccs_workers.verify.trail import Trail, resume_behind

JOB = EngineJob(key="", prompt="p", sampling=Sampling(max_new_tokens=8, stop=("stop",)), seed=1)
CHECK = Check(name="one", alias="m", job=JOB)
OUTPUTS = (
    Delta(text="a", token_ids=(1, 2)),
    Progress(data={"window": 1, "windows": 2, "text_end": 1}),
    Delta(text="é", token_ids=(3,)),
    Progress(data={"window": 2, "windows": 2, "text_end": 2}),
)
DONE = Done(finish_reason="end", usage=Usage(completion_tokens=3), data={"labels": [["cat", 0.9123]]})


def trail_of(*outputs, **options) -> Trail:
    trail = Trail(CHECK, **options)
    for output in outputs:
        trail.take(output)
    return trail


def test_it_resumes_as_a_worker_does():
    claim = Claim(id="j", attempt=1, queue="q", message=b"", payload=b"", seq=0, submitted_ms=0, expire_ms=0)
    for count in range(len(OUTPUTS) + 1):
        run = JobRun(claim)
        run.appends(OUTPUTS[:count])
        trail = trail_of(*OUTPUTS[:count])
        assert trail.resume() == run.resume()
        assert trail.text == run.text
        behind = Trail(CHECK, resume=resume_behind(OUTPUTS[:count]))
        assert behind.resume() == run.resume()


def test_it_is_cut_at_each_place_once_and_goes_on():
    trail = Trail(CHECK, cuts=(3, 1))
    cancelled = Done(finish_reason="cancelled", usage=Usage())
    assert trail.next_job("1").resume is None
    assert trail.take(OUTPUTS[0])
    assert not trail.take(OUTPUTS[1])
    assert not trail.take(cancelled)
    assert trail.paused
    assert not trail.finished
    assert trail.next_job("2").resume == resume_behind(OUTPUTS[:2])
    assert trail.take(OUTPUTS[2])
    trail.take(OUTPUTS[3])
    trail.take(DONE)
    # It was over before it could be stopped: that cut is still to be tried.
    assert trail.finished
    assert trail.unused_cuts == (3,)
    assert trail.resumed == 1


def test_a_lost_one_goes_on_and_a_neighbour_that_was_stopped_does_not():
    trail = trail_of(OUTPUTS[0])
    trail.lost = True
    assert trail.paused
    assert trail.next_job("2").resume.text == "a"
    stopped = Trail(Check(name="n", alias="m", job=JOB, stop_after=1))
    assert stopped.take(OUTPUTS[0])
    stopped.take(Done(finish_reason="cancelled", usage=Usage(completion_tokens=2)))
    assert stopped.finished


def done(**change) -> Done:
    fields = {"finish_reason": "end", "usage": DONE.usage, "data": DONE.data, **change}
    return Done(**fields)


@pytest.mark.parametrize(
    ("outputs", "end", "token", "character", "detail"),
    [
        ((Delta(text="b", token_ids=(1, 2)), *OUTPUTS[1:]), DONE, None, 0, "'bé' instead of 'aé'"),
        ((Delta(text="a", token_ids=(1, 9)), *OUTPUTS[1:]), DONE, 1, None, "other tokens of the same text"),
        (OUTPUTS[:2], DONE, 2, 1, "the end instead of 'é'"),
        ((*OUTPUTS, Delta(text="\ufffd", token_ids=(7,))), DONE, 3, 2, "'\ufffd' instead of the end"),
        (OUTPUTS, done(finish_reason="length"), None, None, "finish reason: length instead of end"),
        (OUTPUTS, done(usage=Usage(completion_tokens=4)), None, None, "usage: "),
        (OUTPUTS, done(data={"labels": [["dog", 0.9123]]}), None, None, "data: "),
        (OUTPUTS, done(data={"labels": [["cat", 0.93]]}), None, None, "data: "),
        (OUTPUTS[:3], DONE, None, None, "progress: "),
        (OUTPUTS, Failed(code="INTERNAL", message="m"), None, None, "ended: failed with INTERNAL instead"),
    ],
)
def test_any_difference_is_found_and_named(outputs, end, token, character, detail):
    found = difference(trail_of(*OUTPUTS, DONE), trail_of(*outputs, end))
    assert found is not None
    assert (found.token, found.character) == (token, character)
    assert found.detail.startswith(detail)


def test_times_and_the_last_digit_of_a_score_are_no_difference():
    usage = Usage(completion_tokens=3, device_s=1.5)
    other = done(usage=usage, first_device_s=0.5, data={"labels": [["cat", 0.9124]]})
    # Joined deltas are the same text.
    joined = (Delta(text="a", token_ids=(1,)), Delta(text="", token_ids=(2,)), *OUTPUTS[1:])
    assert difference(trail_of(*OUTPUTS, DONE), trail_of(*joined, other)) is None


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        ((*OUTPUTS, Delta(text=" stop"), DONE), "a stop string"),
        ((*OUTPUTS[:3], Progress(data={"window": 2, "windows": 2, "text_end": 1}), DONE), "its parts end at"),
        ((*OUTPUTS[:3], Progress(data={"window": 3, "windows": 2}), DONE), "its windows came as"),
        ((*OUTPUTS[:3], DONE), "1 windows came, of [2]"),
        (
            (Delta(text="a", token_ids=tuple(range(9))), done(usage=Usage(completion_tokens=9))),
            "8 are the most",
        ),
        ((*OUTPUTS, done(usage=Usage(completion_tokens=2))), "3 tokens came, and 2"),
        ((Delta(text="\ud83d"), DONE), "can't be an event"),
        ((Delta(text="a", token_ids=(-1,)), done(usage=Usage(completion_tokens=1))), "negative"),
        ((Progress(data={"score": float("nan")}), DONE), "can't be an event"),
    ],
)
def test_what_can_not_be_right_is_found_without_comparison(outputs, fault):
    assert any(fault in found for found in audit(trail_of(*outputs)))


def test_a_right_one_has_no_fault_and_all_that_callers_read_is_searched():
    assert audit(trail_of(*OUTPUTS, DONE)) == []
    assert [place for place, _ in places_of(trail_of(*OUTPUTS, DONE))] == [
        "text",
        "progress 1",
        "progress 2",
        "data",
    ]
    assert dict(places_of(trail_of(Failed(code="X", message="why"))))["error message"] == "why"
