"""The wire, byte for byte: these files were written once and change only with a new version of the wire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ccs_broker.contract import WIRE_VERSION, Event, EventKind, Job, Modality, Outcome, OutcomeState
from ccs_broker.contract.schema import kept_schema
from ccs_broker.contract.wire import dump_json, load_json
from ccs_broker.errors import InvalidInputError

FILES = sorted((Path(__file__).parent / "golden" / f"v{WIRE_VERSION}").glob("*.json"))
RECORDS = {"job": Job, "event": Event, "outcome": Outcome}
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def record_of(file):
    return RECORDS[file.stem.partition("_")[0]]


def test_every_word_of_the_wire_has_its_file():
    expected = {f"job_{modality}" for modality in Modality}
    expected |= {f"event_{kind}" for kind in EventKind} | {f"outcome_{state}" for state in OutcomeState}
    assert expected <= {file.stem for file in FILES}


@every_file
def test_it_is_read_and_written_again_byte_for_byte(file):
    golden = file.read_bytes().removesuffix(b"\n")
    assert dump_json(load_json(record_of(file), golden)) == golden


@every_file
def test_it_fits_the_schema(file):
    schema = json.loads(kept_schema(f"{file.stem.partition('_')[0]}.json"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads(file.read_bytes()))


@every_file
def test_fields_of_a_later_writer_are_dropped(file):
    golden = file.read_bytes()
    later = json.dumps({**json.loads(golden), "field_of_tomorrow": {"a": [1]}})
    assert load_json(record_of(file), later) == load_json(record_of(file), golden)


@every_file
@pytest.mark.parametrize("version", [0, WIRE_VERSION + 1, "x", None])
def test_another_version_is_refused(file, version):
    other = json.dumps({**json.loads(file.read_bytes()), "v": version})
    with pytest.raises(InvalidInputError, match="INVALID_INPUT: v: "):
        load_json(record_of(file), other)


def test_values_arrive_as_they_were_meant():
    job = load_json(Job, next(file for file in FILES if file.stem == "job_text").read_bytes())
    assert job.prompt == 'What is the capital of France? "é" 日本 \u2028 \\'
    assert job.sampling.seed == 2**63 - 1
    assert job.metadata == {"trace": "t-1", "nested": {"list": [1, 2.5, None, True, "x"]}}
    outcome = load_json(
        Outcome, next(file for file in FILES if file.stem == "outcome_succeeded").read_bytes()
    )
    assert (outcome.text, outcome.timings.first_output_s, outcome.usage.audio_s) == ("Paris", 0.25, 3.5)
