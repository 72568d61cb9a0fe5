"""Media commands, and what reading a medium checks."""

from __future__ import annotations

import pytest

from ccs_broker.blobs import get_blob, put_blob, read_blob
from ccs_broker.contract.media import reference_to
from ccs_broker.errors import InternalError, NotFoundError

REFERENCE = reference_to(b"data")


def test_storing_sets_a_life_and_touches_nothing_that_is_there():
    assert put_blob("ab", b"data") == ("SET", "ccs:blob:ab", b"data", "NX", "EX", 300)


def test_reading_is_bounded_by_the_size_that_was_named():
    assert get_blob(REFERENCE) == ("GETRANGE", f"ccs:blob:{REFERENCE.sha256}", 0, 4)
    assert read_blob(REFERENCE, b"data") == b"data"


@pytest.mark.parametrize("reply", [b"", None])
def test_a_medium_that_has_gone(reply):
    with pytest.raises(NotFoundError, match=REFERENCE.sha256[:12]):
        read_blob(REFERENCE, reply)


@pytest.mark.parametrize("reply", [b"datA", b"dat", b"data!"])
def test_a_medium_that_is_another(reply):
    with pytest.raises(InternalError, match="does not match its digest"):
        read_blob(REFERENCE, reply)
