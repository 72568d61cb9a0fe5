"""The canonical JSON of records, and what reading it refuses."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Event, EventKind, Job, Outcome, OutcomeState, TextPart
from ccs_broker.contract.wire import dump_json, load_json
from ccs_broker.errors import InvalidInputError


def test_json_is_compact_without_none_and_with_defaults():
    outcome = Outcome(state=OutcomeState.SUCCEEDED, data={"label": None})
    assert dump_json(outcome) == (
        b'{"v":1,"state":"succeeded","text":"","usage":{"prompt_tokens":0,"completion_tokens":0,"images":0,'
        b'"audio_s":0.0},"timings":{},"attempts":0,"data":{"label":null}}'
    )


def test_a_lone_surrogate_can_not_be_written():
    job = Job(id="j", modality="text", parts=(TextPart(text="secret \ud800"),))
    with pytest.raises(InvalidInputError, match="lone surrogate") as caught:
        dump_json(job)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"v":1}', '{"v":1,"job":"j","seq":0,"kind":"delta"}']
)
def test_what_is_no_event_is_refused(text):
    with pytest.raises(InvalidInputError):
        load_json(Event, text)


def test_many_faults_are_summed_up():
    with pytest.raises(InvalidInputError, match=r"seq: .*; kind: .*; attempt: .*; and 1 more"):
        load_json(Event, '{"job":"j","seq":0,"kind":"x","attempt":-1,"at_ms":-1}')


@pytest.mark.parametrize("kind", list(EventKind))
def test_one_kind_in_three_words(kind):
    event = Event(job="j", seq=1, kind=kind)
    assert event.terminal == kind.terminal == (kind.value in set(OutcomeState))
