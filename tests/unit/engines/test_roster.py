"""Who runs beside whom: places, room, and trials after a crash."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Sampling
from ccs_workers.engines.protocol import EngineJob
from ccs_workers.engines.text.request import Request, Trial
from ccs_workers.engines.text.roster import MOST_CRASHES, Roster
from ccs_workers.engines.text.stop_strings import StopFilter


class Silent:
    def push(self, ids):
        return ""

    def finish(self):
        return ""


def request(key: str, tokens: int = 10) -> Request:
    job = EngineJob(key=key, prompt="-", sampling=Sampling(max_new_tokens=tokens - 1), seed=0)
    return Request(job=job, prompt_ids=[0], detokenizer=Silent(), stop=StopFilter(()))


def filled(places: int, *requests: Request) -> Roster:
    roster = Roster(places)
    for one in requests:
        roster.append(one)
    return roster


def admitted(roster: Roster, room: int = 1000) -> str:
    return "".join(one.job.key for one in roster.admit(room, lambda tokens: tokens))


def test_places_are_given_in_order():
    roster = filled(2, *map(request, "abc"))
    assert admitted(roster) == "ab"
    assert admitted(roster) == ""
    assert roster.remove(roster.find("a"))
    assert admitted(roster) == "c"
    assert len(roster) == 2


def test_a_job_waits_until_its_whole_length_fits_and_nobody_overtakes_it():
    roster = filled(9, request("a", 60), request("b", 50), request("c", 10))
    assert admitted(roster, room=100) == "a"
    roster.remove(roster.find("a"))
    assert admitted(roster, room=100) == "bc"


def test_removing_a_waiting_one_says_so():
    roster = filled(1, *map(request, "ab"))
    admitted(roster)
    assert roster.active("b") is None
    assert not roster.remove(roster.find("b"))
    assert roster.find("b") is None


def test_the_only_one_in_a_crash_fails():
    roster = filled(9, request("a"))
    admitted(roster)
    assert [one.job.key for one in roster.crashed()] == ["a"]


def test_after_a_crash_one_joins_after_the_other_and_the_culprit_is_found():
    roster = filled(9, *map(request, "abcd"))
    assert admitted(roster) == "abcd"
    assert roster.crashed() == []
    assert admitted(roster) == "a"
    # A token clears it, and the next may join.
    roster.find("a").trial = Trial.NONE
    assert admitted(roster) == "b"
    assert roster.crashed() == []
    # It was the only one on trial: now it is alone, and did it.
    assert admitted(roster) == "b"
    assert [one.job.key for one in roster.crashed()] == ["b"]
    roster.remove(roster.find("b"))
    assert admitted(roster) == "ac"
    roster.find("c").trial = Trial.NONE
    assert admitted(roster) == "d"


def test_one_that_gives_a_token_alone_is_cleared():
    roster = filled(9, *map(request, "ab"))
    admitted(roster)
    roster.crashed()
    assert admitted(roster) == "a"
    roster.find("a").trial = Trial.NONE
    assert admitted(roster) == "b"
    roster.crashed()
    assert admitted(roster) == "b"
    assert roster.find("b").trial is Trial.ALONE
    roster.find("b").trial = Trial.NONE
    assert admitted(roster) == "a"


@pytest.mark.parametrize("size", [2, 5])
def test_crashes_that_nobody_causes_end(size):
    roster = filled(9, *(request(str(number)) for number in range(size)))
    crashes = 0
    while len(roster):
        assert admitted(roster)
        for number in range(size):
            one = roster.active(str(number))
            if one is not None:
                one.trial = Trial.NONE
        admitted(roster)
        crashes += 1
        for one in roster.crashed():
            roster.remove(one)
    assert crashes <= MOST_CRASHES * size
