"""Waits for a job on the caller's behalf: over outages of the server, and saying what the job is waiting for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ccs_broker.client import JobState
from ccs_broker.errors import QueueUnavailableError, WaitTimeoutError
from ccs_broker.topology import QUEUE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccs_broker.client import Client, JobHandle
    from ccs_broker.contract import Event, Outcome

__all__ = ["OUTAGE_S", "JobWatch"]

#: Longest outage of the server that is waited for where the caller gave no limit; workers have the same patience.
OUTAGE_S: Final = 300.0
#: Silence after which the job is looked at, again and again.
_LOOK_S: Final = 1.5
_RETRY_S: Final = 0.5


class JobWatch:
    """Follows one job. ``say`` is given lines for the reader: what is away, and what the job waits for.

    ``timeout_s`` is the longest time without news, of the job or of the server; None waits for the job without end,
    and for a server that is away up to ``OUTAGE_S``.
    """

    def __init__(
        self,
        client: Client,
        job: JobHandle,
        timeout_s: float | None,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.job = job
        self._client = client
        self._timeout_s = timeout_s
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._news_at = self._met_at = clock()
        self._away = False
        #: What was said last of why nothing happens.
        self._trouble = ""

    def events(self, after: int) -> Iterator[Event]:
        """The events behind number ``after``, up to the terminal one.

        Raises:
            WaitTimeoutError, QueueUnavailableError: patience is over; the message says how to go on.
            CcsError: as ``JobHandle.stream``.
        """
        last = after
        while True:
            try:
                for event in self.job.stream(after=last, timeout=self._step_s()):
                    self._has_news()
                    last = event.seq
                    yield event
                    # The reader's own time doesn't count as silence.
                    self._news_at = self._met_at = self._clock()
            except (WaitTimeoutError, QueueUnavailableError) as error:
                self._bear(error, f"ccs stream {self.job.id} --after {last}")
            else:
                return

    def outcome(self) -> Outcome:
        """How the job ended, once it has; raises as ``events``."""
        while True:
            try:
                return self.job.result(timeout=self._step_s())
            except (WaitTimeoutError, QueueUnavailableError) as error:
                self._bear(error, f"ccs result {self.job.id}")

    def _step_s(self) -> float:
        if self._timeout_s is None:
            return _LOOK_S
        return max(0.0, min(_LOOK_S, self._news_at + self._timeout_s - self._clock()))

    def _has_news(self) -> None:
        self._is_met()
        self._trouble = ""

    def _is_met(self) -> None:
        if self._away:
            self._away = False
            self._say("the server is back")

    def _bear(self, error: WaitTimeoutError | QueueUnavailableError, go_on: str) -> None:
        """Return if there is patience left; otherwise raise the error, with the command that goes on."""
        now = self._clock()
        away = isinstance(error, QueueUnavailableError)
        if not away:
            self._met_at = now
        limit_s = self._timeout_s
        since = self._news_at
        if limit_s is None and away:
            limit_s, since = OUTAGE_S, self._met_at
        if limit_s is not None and now - since >= limit_s:
            what = error.message if away else "no news"
            raise type(error)(
                f"{what} for {limit_s:g} s; job {self.job.id} goes on without you: pick it up with '{go_on}'"
            ) from error
        if not away:
            self._is_met()
            self._look()
            return
        if not self._away:
            self._away = True
            left_s = (limit_s or 0.0) - (now - since)
            self._say(f"{error.message}; trying again for up to {left_s:.0f} s (the job goes on)")
        self._sleep(_RETRY_S)

    def _look(self) -> None:
        """Say why a job that waits isn't begun, whenever that has changed."""
        try:
            trouble = self._why_it_waits()
        except QueueUnavailableError:
            # The next step meets it too, and bears it.
            return
        if trouble != self._trouble:
            self._say(trouble or "a worker that serves it is ready now")
            self._trouble = trouble

    def _why_it_waits(self) -> str:
        status = self.job.status()
        if status.state is not JobState.WAITING:
            return ""
        modality = status.queue.removeprefix(QUEUE_PREFIX)
        # A report comes from a worker that may be older or newer: nothing in it is certain.
        serving = [one for one in self._client.workers() if modality in one.report.get("modalities", ())]
        if not serving:
            return (
                f"no worker serves {modality}: the job waits until one does "
                f"('ccs worker --modalities {modality}' starts one)"
            )
        if any(one.state == "ready" for one in serving):
            return ""
        states = ", ".join(f"{one.name} is {one.state}" for one in serving)
        return f"no worker is ready to serve {modality}: {states}"
