"""Plans that follow a job: its stream of events, or only its end.

Subscribe and have it confirmed, read the log, then follow the bell. The bell may fall silent (a dropped
connection, a slow reader whose buffer the server has emptied): so the log is read again every second, after
every reconnect and wherever a number is missing, and the log alone decides what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

from ccs_broker import topology
from ccs_broker.client.core import unknown_job
from ccs_broker.client.faults import checked
from ccs_broker.client.outcomes import ask_record, read_outcome, read_record
from ccs_broker.client.steps import Ask, Asking, Following, Listen, Pause, Subscribe, Unsubscribe
from ccs_broker.errors import InvalidInputError, QueueUnavailableError, StreamExpiredError, WaitTimeoutError
from ccs_broker.streams import Follower, bell_ends_stream, event_from_bell, read_log
from ccs_broker.streams.records import LogPage, log_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_broker.contract.event import Event
    from ccs_broker.contract.outcome import Outcome

T = TypeVar("T")

#: Longest trust in a silent bell.
BELL_TRUST_S: Final = 1.0
#: Time between two tries to reach a server that has gone.
RETRY_PAUSE_S: Final = 0.1


class Watch:
    """The time a caller is willing to wait; None: for ever."""

    def __init__(self, timeout_s: float | None, clock: Callable[[], float]) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            raise InvalidInputError("timeout: should be seconds, 0 or more, or None")
        self._timeout_s = timeout_s
        self._clock = clock
        self._since = clock()

    def restart(self) -> None:
        """Wait anew from now."""
        self._since = self._clock()

    def step_s(self) -> float:
        """Seconds to wait for the bell now."""
        if self._timeout_s is None:
            return BELL_TRUST_S
        return max(min(BELL_TRUST_S, self._since + self._timeout_s - self._clock()), 0.0)

    def check(self, job_id: str, what: str) -> None:
        """``WaitTimeoutError`` if the time is over."""
        if self._timeout_s is not None and self._clock() >= self._since + self._timeout_s:
            raise WaitTimeoutError(f"{what} of job {job_id} within {self._timeout_s:g} s; the job goes on")


class JobFollower:
    """Follows one job for one reader.

    ``outage_s`` is how long a server that has answered before may be away.
    """

    def __init__(self, job_id: str, outage_s: float, clock: Callable[[], float]) -> None:
        self._id = job_id
        self._outage_s = outage_s
        self._clock = clock
        self._met = False
        self._attached = False

    def stream(self, after: int, timeout_s: float | None) -> Following[None]:
        """Give out the events behind number ``after``, in order, up to the terminal one.

        Raises:
            NotFoundError: there is no such job.
            StreamExpiredError: the log is gone.
            WaitTimeoutError: no event for ``timeout_s`` seconds.
            QueueUnavailableError: the server can't be reached, or has been away for too long.
        """
        if after < 0:
            raise InvalidInputError("after: should be the number of an event, or 0")
        watch = Watch(timeout_s, self._clock)
        place = Follower(after)
        while True:
            yield from self._attach()
            page = yield from self._read_page(place)
            if page is not None and page.full:
                # Far behind: bells would only pile up in the server while this reader works through the log.
                yield Unsubscribe()
                self._attached = False
            if page is not None and not page.events:
                watch.check(self._id, "no event")
            while page is not None:
                if (yield from self._give(place, page.events, watch)):
                    return
                if not page.full:
                    break
                page = yield from self._read_page(place)
            if page is None:
                return
            if self._attached and (yield from self._listen(place, watch)):
                return

    def result(self, timeout_s: float | None) -> Following[Outcome]:
        """Wait for the job's end and give its outcome, also when the log has expired.

        Raises:
            NotFoundError: there is no such job.
            WaitTimeoutError: it had not ended after ``timeout_s`` seconds.
            QueueUnavailableError: the server can't be reached, or has been away for too long.
        """
        watch = Watch(timeout_s, self._clock)
        while True:
            outcome = yield from self._outcome()
            if outcome is not None:
                return outcome
            watch.check(self._id, "no outcome")
            if not self._attached:
                yield from self._attach()
                # What ended before the subscription rang no bell here.
                continue
            yield from self._listen_for_end(watch)

    def _give(self, place: Follower, events: tuple[Event, ...], watch: Watch) -> Following[bool]:
        """Give out those of some events that come next; True if the stream has ended."""
        for event in place.feed_all(events):
            yield event
            # The reader's own time doesn't count as silence.
            watch.restart()
        return place.done

    def _listen(self, place: Follower, watch: Watch) -> Following[bool]:
        """Follow the bell until the log must be read again; True if the stream has ended."""
        while place.missing is None:
            bell = yield from self._hear(watch)
            event = None if bell is None else event_from_bell(bell)
            if event is None:
                return False
            if (yield from self._give(place, (event,), watch)):
                return True
        return False

    def _listen_for_end(self, watch: Watch) -> Following[None]:
        while True:
            bell = yield from self._hear(watch)
            if bell is None or bell_ends_stream(bell):
                return
            if watch.step_s() == 0:
                return

    def _hear(self, watch: Watch) -> Following[bytes | None]:
        """The next bell, or None if it is silent or lost."""
        try:
            return cast("bytes | None", (yield Listen(watch.step_s())))
        except QueueUnavailableError:
            self._attached = False
            return None

    def _attach(self) -> Following[None]:
        if not self._attached:
            yield from self._patiently(Subscribe(topology.CHANNEL + self._id))
            self._attached = True

    def _read_page(self, place: Follower) -> Following[LogPage | None]:
        """What the log holds behind the reader's place; None if nothing comes any more."""
        # The record is read before the log, so the log must hold everything the record counts.
        replies = yield from self._patiently(Ask((ask_record(self._id), log_range(self._id, place.last))))
        first, entries = cast("list[object]", replies)
        record = read_record(first)
        if record is None:
            raise unknown_job(self._id)
        page = read_log(self._id, checked(entries))
        if page.events and page.events[0].seq == place.last + 1:
            return page
        if record.seq > place.last:
            _, outcome = yield from self._asking(read_outcome(self._id))
            raise StreamExpiredError(f"the events of job {self._id} can't be replayed any more", outcome)
        return None if record.state.terminal else page

    def _outcome(self) -> Following[Outcome | None]:
        record, outcome = yield from self._asking(read_outcome(self._id))
        if record is None:
            raise unknown_job(self._id)
        return outcome

    def _asking(self, plan: Asking[T]) -> Following[T]:
        """A plan that only asks, with the patience of this one."""
        try:
            step = next(plan)
            while True:
                replies = yield from self._patiently(step)
                step = plan.send(cast("list[object]", replies))
        except StopIteration as stop:
            return cast("T", stop.value)

    def _patiently(self, step: Ask | Subscribe) -> Following[object]:
        """Repeat a step while the server is away, if it has been there before."""
        begun = self._clock()
        while True:
            try:
                answer = yield step
            except QueueUnavailableError:
                if not self._met or self._clock() + RETRY_PAUSE_S > begun + self._outage_s:
                    raise
            else:
                self._met = True
                return answer
            yield Pause(RETRY_PAUSE_S)
