"""The form of a job's id, which clients, producers and revokes are held to alike."""

from __future__ import annotations

import pytest

from ccs_broker.client.core import checked_id
from ccs_broker.contract import is_job_id
from ccs_broker.errors import InvalidInputError


@pytest.mark.parametrize("job_id", ["a", "-", "A_b-9", "x" * 64, "6f1c0a52-7f0e-4a53-9a4e-3c6f2b1f8f01"])
def test_an_id_of_this_form_is_one(job_id):
    assert is_job_id(job_id)
    assert checked_id(job_id) == job_id


@pytest.mark.parametrize(
    "job_id", ["", "x" * 65, "a b", "a|1", "a:b", "\u00e9", "\u0661", "a\n", b"a", 5, None, ["a"]]
)
def test_any_other_is_none(job_id):
    assert not is_job_id(job_id)
    with pytest.raises(InvalidInputError, match="1 to 64 ASCII letters"):
        checked_id(job_id)
