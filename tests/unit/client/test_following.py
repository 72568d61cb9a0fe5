"""The plans that follow a job, run against a server made of a dictionary, a clock and dice."""

from __future__ import annotations

import random

import pytest

from ccs_broker.client.following import JobFollower
from ccs_broker.client.steps import Ask, Listen, Pause, Subscribe, Unsubscribe
from ccs_broker.contract import Event, EventKind
from ccs_broker.contract.wire import dump_json
from ccs_broker.errors import (
    InvalidInputError,
    NotFoundError,
    QueueUnavailableError,
    StreamExpiredError,
    WaitTimeoutError,
)

OUTCOME = b'{"v":1,"state":"succeeded","text":"all of it","attempts":1}'


def sequence(deltas):
    kinds = [EventKind.QUEUED, EventKind.STARTED, *[EventKind.DELTA] * deltas, EventKind.SUCCEEDED]
    return [Event(job="j", seq=seq, kind=kind, at_ms=seq) for seq, kind in enumerate(kinds, 1)]


class World:
    """A server that writes ``events`` while it is looked at, and a line to it that may be bad."""

    def __init__(self, events, *, written=0, rng=None, drops=0.0, cuts=0.0, away=0.0, log=True):
        self.events, self.written, self.log = events, written, log
        self.rng, self.drops, self.cuts, self.away = rng or random.Random(0), drops, cuts, away
        self.now = 0.0
        self.back_at = 0.0
        self.subscribed = False
        self.bells = []
        self.steps = []

    def follower(self):
        return JobFollower("j", 5.0, lambda: self.now)

    def write(self, count):
        for event in self.events[self.written : self.written + count]:
            self.written += 1
            if self.subscribed and self.rng.random() >= self.drops:
                self.bells.append(dump_json(event))

    def perform(self, step):
        self.steps.append(step)
        self.now += 0.001
        if isinstance(step, Pause):
            self.now += step.seconds
        elif isinstance(step, Unsubscribe):
            self.subscribed, self.bells = False, []
        elif isinstance(step, Listen):
            return self._listen(step.seconds)
        else:
            return self._reach(step)
        return None

    def _reach(self, step):
        if self.now >= self.back_at and self.rng.random() < self.away:
            self.back_at = self.now + 1.0
        if self.now < self.back_at:
            self.subscribed, self.bells = False, []
            raise QueueUnavailableError("away")
        if isinstance(step, Subscribe):
            assert step.channel == "ccs:events:j"
            self.subscribed, self.bells = True, []
            return None
        assert isinstance(step, Ask)
        self.write(self.rng.randint(0, 2))
        return [self._reply(command) for command in step.commands]

    def _listen(self, seconds):
        self.write(self.rng.randint(0, 3))
        if not self.subscribed or self.rng.random() < self.cuts:
            self.subscribed, self.bells = False, []
            raise QueueUnavailableError("cut")
        if self.bells:
            return self.bells.pop(self.rng.randrange(len(self.bells)))
        self.now += seconds
        return None

    def _reply(self, command):
        if command[0] == "HMGET":
            return [self._field(name) for name in command[2:]]
        assert command[:2] == ("XRANGE", "ccs:log:j")
        first, count = int(command[2].removesuffix("-0")), command[5]
        found = self.events[first - 1 : min(self.written, first - 1 + count)] if self.log else []
        return [
            (b"%d-0" % e.seq, [b"k", e.kind.value.encode(), b"n", b"0", b"t", b"%d" % e.at_ms]) for e in found
        ]

    def _field(self, name):
        ended = self.written == len(self.events)
        record = {"kind": b"job", "state": b"succeeded" if ended else b"running", "seq": b"%d" % self.written}
        record |= {"sub": b"1000", "start": b"1500", "first": b"2000", "end": b"3000"}
        return (record | ({"outcome": OUTCOME} if ended else {})).get(name) if self.written else None


def drive(world, plan):
    """Perform a plan; gives out its events, and returns its value."""
    try:
        step = next(plan)
        while True:
            if isinstance(step, Event):
                yield step
                step = next(plan)
                continue
            try:
                answer = world.perform(step)
            except QueueUnavailableError as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value


def result_of(world, plan):
    """The value of a plan that gives out no events."""
    try:
        event = next(drive(world, plan))
    except StopIteration as stop:
        return stop.value
    raise AssertionError(event)


@pytest.mark.parametrize("seed", range(150))
def test_bad_lines_give_the_same_sequence(seed):
    rng = random.Random(seed)
    events = sequence(rng.randint(0, 60))
    world = World(events, written=rng.randint(1, len(events)), rng=rng, drops=0.3, cuts=0.1)
    after = rng.choice((0, rng.randint(0, len(events) - 1)))
    assert list(drive(world, world.follower().stream(after, 30.0))) == events[after:]


@pytest.mark.parametrize("seed", range(50))
def test_a_server_that_goes_away_for_a_while_costs_nothing(seed):
    rng = random.Random(seed)
    events = sequence(20)
    world = World(events, written=1, rng=rng, cuts=0.1)
    stream = drive(world, world.follower().stream(0, 30.0))
    given = [next(stream)]
    world.away = 0.1
    assert [*given, *stream] == events


def test_a_reader_far_behind_works_through_the_log_without_a_subscription():
    events = sequence(1500)
    world = World(events, written=1400)
    assert list(drive(world, world.follower().stream(0, 30.0))) == events
    kinds = [type(step) for step in world.steps[:8]]
    assert kinds[:6] == [Subscribe, Ask, Unsubscribe, Ask, Ask, Subscribe]


def test_a_finished_job_is_replayed_in_two_round_trips():
    events = sequence(5)
    world = World(events, written=len(events))
    assert list(drive(world, world.follower().stream(3, 30.0))) == events[3:]
    assert [type(step) for step in world.steps] == [Subscribe, Ask]


@pytest.mark.parametrize("after", [8, 9, 1000])
def test_a_reader_that_has_seen_all_gets_nothing_more(after):
    events = sequence(5)
    for world in (World(events, written=8), World(events, written=8, log=False), World(events, written=3)):
        assert list(drive(world, world.follower().stream(after, 30.0))) == []


def test_a_log_that_has_expired_gives_the_outcome():
    world = World(sequence(5), written=8, log=False)
    with pytest.raises(StreamExpiredError, match="j can't be replayed any more") as caught:
        next(drive(world, world.follower().stream(0, 30.0)))
    assert caught.value.outcome.text == "all of it"


def test_a_log_lost_under_a_running_job_is_told_and_not_waited_for():
    world = World(sequence(500), written=5, log=False)
    with pytest.raises(StreamExpiredError) as caught:
        next(drive(world, world.follower().stream(0, 30.0)))
    assert caught.value.outcome is None


def test_an_unknown_job_is_not_waited_for():
    world = World(sequence(5), written=0, rng=random.Random(1))
    world.write = lambda count: None
    for plan in (world.follower().stream(0, 30.0), world.follower().result(30.0)):
        with pytest.raises(NotFoundError, match="there is no job 'j'"):
            result_of(world, plan)
    assert world.now < 0.1


@pytest.mark.parametrize("timeout_s", [0, 0.5, 3.0])
def test_silence_is_the_time_between_events(timeout_s):
    world = World(sequence(5), written=2)
    world.write = lambda count: None
    stream = drive(world, world.follower().stream(0, timeout_s))
    for seq in (1, 2):
        assert next(stream).seq == seq
        world.now += 100
    with pytest.raises(WaitTimeoutError, match=f"no event of job j within {timeout_s:g} s; the job goes on"):
        next(stream)
    assert 200 + timeout_s <= world.now < 200.1 + timeout_s


def test_a_silent_bell_is_not_trusted():
    events = sequence(5)
    world = World(events, written=1, drops=1.0)
    assert list(drive(world, world.follower().stream(0, 30.0))) == events
    assert all(step.seconds <= 1.0 for step in world.steps if isinstance(step, Listen))


def test_a_server_that_was_never_there_is_told_at_once():
    world = World(sequence(5), written=1, away=1.0)
    for plan in (world.follower().stream(0, 30.0), world.follower().result(30.0)):
        with pytest.raises(QueueUnavailableError):
            result_of(world, plan)
    assert len(world.steps) == 2


def test_a_server_that_stays_away_is_given_up():
    world = World(sequence(500), written=1)
    stream = drive(world, world.follower().stream(0, None))
    assert next(stream).seq == 1
    world.cuts = world.away = 1.0
    with pytest.raises(QueueUnavailableError):
        list(stream)
    assert 4.0 < world.now < 6.0


@pytest.mark.parametrize("seed", range(30))
def test_a_result_is_waited_for_over_bad_lines(seed):
    rng = random.Random(seed)
    world = World(sequence(20), written=1, rng=rng, drops=0.3, cuts=0.1)
    outcome = result_of(world, world.follower().result(60.0))
    assert (outcome.state, outcome.text, outcome.attempts) == ("succeeded", "all of it", 1)
    assert outcome.timings.model_dump() == {"started_s": 0.5, "first_output_s": 1.0, "finished_s": 2.0}


@pytest.mark.parametrize("timeout_s", [0, 0.5, 3.0])
def test_a_result_that_does_not_come(timeout_s):
    world = World(sequence(5), written=2)
    world.write = lambda count: None
    with pytest.raises(WaitTimeoutError, match=f"no outcome of job j within {timeout_s:g} s"):
        result_of(world, world.follower().result(timeout_s))
    assert timeout_s <= world.now < timeout_s + 0.1


@pytest.mark.parametrize(("after", "timeout_s"), [(-1, 1), (0, -1), (0, float("nan"))])
def test_nonsense_is_refused(after, timeout_s):
    world = World(sequence(5), written=2)
    with pytest.raises(InvalidInputError):
        next(drive(world, world.follower().stream(after, timeout_s)))
