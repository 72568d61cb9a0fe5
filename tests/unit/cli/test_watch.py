"""Waiting for a job: over outages, with a word on what it waits for, and an end to patience."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ccs_broker.cli.watch import OUTAGE_S, JobWatch
from ccs_broker.client import JobState
from ccs_broker.contract import Event, EventKind, Outcome, OutcomeState
from ccs_broker.errors import NotFoundError, QueueUnavailableError, WaitTimeoutError

AWAY = QueueUnavailableError("the server at here:1 could not be reached")


class Scripted:
    """A job and a client that do what the test says, on a clock of their own."""

    id = "j"

    def __init__(
        self, *steps: object, workers: list | None = None, state: JobState = JobState.WAITING
    ) -> None:
        self.steps = list(steps)
        self.after: list[int] = []
        self.said: list[str] = []
        self.now = 0.0
        self.state = state
        self.found = workers if workers is not None else []

    def stream(self, after, timeout):
        self.after.append(after)
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                self.now += 5.0
                raise step
            if step is None:
                self.now += timeout
                raise WaitTimeoutError("no event")
            if callable(step):
                step()
                continue
            yield step
            if step.terminal:
                return

    def result(self, timeout):
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            self.now += 5.0
            raise step
        if step is None:
            self.now += timeout
            raise WaitTimeoutError("no outcome")
        return step

    def status(self):
        return SimpleNamespace(state=self.state, queue="ccs.text")

    def workers(self):
        return self.found

    def watch(self, timeout_s: float | None = None) -> JobWatch:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return JobWatch(self, self, timeout_s, self.said.append, clock=lambda: self.now, sleep=sleep)


def event(seq: int, kind: EventKind = EventKind.DELTA) -> Event:
    return Event(job="j", seq=seq, kind=kind)


def served(state: str, modality: str = "text") -> SimpleNamespace:
    return SimpleNamespace(name=f"w-{state}", state=state, report={"modalities": [modality]})


LAST = event(4, EventKind.SUCCEEDED)
DONE = Outcome(state=OutcomeState.SUCCEEDED)


def test_an_outage_is_borne_and_the_stream_goes_on_behind_the_last_event():
    job = Scripted(event(1), event(2), AWAY, AWAY, AWAY, event(3), LAST, state=JobState.RUNNING)
    assert [one.seq for one in job.watch().events(0)] == [1, 2, 3, 4]
    assert job.after == [0, 2, 2, 2]
    assert job.said == [
        "the server at here:1 could not be reached; trying again for up to 295 s (the job goes on)",
        "the server is back",
    ]


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(None, OUTAGE_S), (20.0, 20.0)])
def test_patience_with_a_server_that_stays_away_ends_and_the_way_on_is_told(timeout_s, patience_s):
    job = Scripted(event(1), event(2), *[AWAY] * 1000)
    with pytest.raises(QueueUnavailableError, match=r"goes on .* 'ccs stream j --after 2'"):
        list(job.watch(timeout_s).events(0))
    assert patience_s <= job.now < patience_s + 6


def test_a_timeout_counts_silence_of_the_job_and_tells_the_way_on():
    job = Scripted(event(7), *[None] * 1000, state=JobState.RUNNING)
    with pytest.raises(
        WaitTimeoutError, match=r"no news for 30 s; job j goes on .* 'ccs stream j --after 7'"
    ):
        list(job.watch(30.0).events(6))
    assert job.now == pytest.approx(30.0)
    assert job.said == []


def test_the_readers_own_time_is_no_silence():
    job = Scripted(event(1), event(2), None, LAST, state=JobState.RUNNING)
    for _ in job.watch(5.0).events(0):
        job.now += 60.0


def test_without_a_timeout_a_job_may_take_any_time():
    job = Scripted(*[None] * 10_000, event(1), LAST, state=JobState.RUNNING)
    assert len(list(job.watch().events(0))) == 2
    assert job.now > 10 * OUTAGE_S


def test_the_outcome_is_waited_for_in_the_same_way():
    job = Scripted(None, AWAY, None, DONE, state=JobState.RUNNING)
    assert job.watch().outcome() is DONE
    assert len(job.said) == 2
    with pytest.raises(WaitTimeoutError, match="'ccs result j'"):
        Scripted(None, state=JobState.RUNNING).watch(3.0).outcome()


def test_other_errors_pass():
    with pytest.raises(NotFoundError):
        list(Scripted(event(1), NotFoundError("gone")).watch().events(0))


def test_what_a_waiting_job_waits_for_is_said_once_and_again_when_it_changes():
    job = Scripted(None, None, None)

    def with_workers(*workers: SimpleNamespace):
        return lambda: job.found.__setitem__(slice(None), workers)

    job.steps += [
        with_workers(served("loading")), None, None,
        with_workers(served("ready", "audio")), None,
        with_workers(served("ready")), None, None, LAST,
    ]  # fmt: skip
    list(job.watch().events(0))
    nobody, loading, nobody_again, ready = job.said
    assert nobody.startswith("no worker serves text: the job waits")
    assert "'ccs worker --modalities text'" in nobody
    assert loading == "no worker is ready to serve text: w-loading is loading"
    assert (nobody_again, ready) == (nobody, "a worker that serves it is ready now")


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.DELAYED, JobState.SUCCEEDED])
def test_a_job_that_doesnt_wait_needs_no_word(state):
    job = Scripted(None, None, LAST, state=state)
    list(job.watch().events(0))
    assert job.said == []
