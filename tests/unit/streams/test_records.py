"""Log entries and bells as events."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Event, EventKind
from ccs_broker.errors import InternalError
from ccs_broker.streams import bell_ends_stream, event_from_bell, event_from_log, read_log
from ccs_broker.streams.records import log_range

BELL = (
    b'{"v":1,"job":"j","seq":7,"kind":"delta","attempt":2,"at_ms":1700000000000,'
    b'"text":"a\\u0000\\/\xc3\xa9","data":{"a":[1]}}'
)
FIELDS = [
    b"k",
    b"delta",
    b"n",
    b"2",
    b"t",
    b"1700000000000",
    b"x",
    b"a\0/\xc3\xa9",
    b"d",
    b'{"a":[1]}',
    b"i",
    b"5,6",
]
EVENT = Event(
    job="j", seq=7, kind=EventKind.DELTA, attempt=2, at_ms=1700000000000, text="a\0/é", data={"a": [1]}
)


def test_bell_and_log_entry_are_the_same_event():
    assert event_from_bell(BELL) == event_from_log("j", b"7-0", FIELDS) == EVENT


def test_a_short_entry_has_its_defaults():
    event = event_from_log("j", b"1-0", [b"k", b"queued", b"n", b"0", b"t", b"5"])
    assert (event.text, event.data, event.terminal) == ("", {}, False)


def test_a_page_says_if_more_may_follow():
    entries = [(b"%d-0" % seq, FIELDS) for seq in (4, 5)]
    assert [event.seq for event in read_log("j", entries, 3).events] == [4, 5]
    assert not read_log("j", entries, 3).full
    assert read_log("j", entries, 2).full
    assert log_range("j", 3, 2) == ("XRANGE", "ccs:log:j", "4-0", "+", "COUNT", 2)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"k", b"delta"],
        [b"k", b"unheard-of", b"n", b"0", b"t", b"5"],
        [b"k", b"delta", b"n", b"0", b"t", b"5", b"x", b"secret\xff"],
        [b"k", b"delta", b"n", b"0", b"t", b"5", b"d", b"{secret"],
        [b"k", b"delta", b"n", b"0", b"t", b"5", b"d", b'["secret"]'],
    ],
)
def test_an_entry_that_is_not_ours_is_told_without_its_content(fields):
    with pytest.raises(InternalError, match="log of job j can't be read") as caught:
        event_from_log("j", b"1-0", fields)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("bell", [b"", b"x", b"[]", b'{"v":2,"job":"j","seq":7,"kind":"delta"}'])
def test_a_bell_that_can_not_be_read_is_none(bell):
    assert event_from_bell(bell) is None
    assert not bell_ends_stream(bell)


@pytest.mark.parametrize("kind", list(EventKind))
def test_an_end_is_heard_without_parsing(kind):
    bell = BELL.replace(b'"kind":"delta"', b'"kind":"%s"' % kind.value.encode())
    assert bell_ends_stream(bell) == kind.terminal


def test_a_text_that_looks_like_an_end_is_none():
    assert not bell_ends_stream(BELL.replace(b"a\\u0000", b'\\",\\"kind\\":\\"failed\\"'))
