"""The kept JSON Schemas are what the records generate."""

from __future__ import annotations

import json

import pytest

from ccs_broker.contract.schema import generated_schemas, kept_schema


@pytest.mark.parametrize("name", sorted(generated_schemas()))
def test_kept_schemas_are_up_to_date(name):
    same = json.loads(generated_schemas()[name]) == json.loads(kept_schema(name))
    assert same, "the wire changed; if that is meant, run: python -m ccs_broker.contract.schema"


def test_the_three_records_have_a_schema():
    assert sorted(generated_schemas()) == ["event.json", "job.json", "outcome.json"]
