"""The load of a chaos run: submits steadily through the client, notices what has ended, and follows some jobs live."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final

from redis import Redis
from redis.exceptions import RedisError

from benchmarks.chaos_plan import Plan, Wish, poison
from ccs_broker import Client, topology
from ccs_broker.client.records import JobState
from ccs_broker.contract.event import TERMINAL_KINDS
from ccs_broker.errors import QueueUnavailableError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ENDED: Final = frozenset(kind.value.encode() for kind in TERMINAL_KINDS)
_RETRY_S: Final = 0.1
_POLL_S: Final = 0.05
_FOLLOWERS: Final = 2
#: Jobs of which a cancel picks one.
_RECENT: Final = 24
#: Poison jobs are numbered from here.
_POISON_FROM: Final = 1_000_000


class LoadRun:
    """Submits in one thread; the faults call it from another."""

    def __init__(self, plan: Plan, url: str, released: Callable[[], int]) -> None:
        self._plan = plan
        self._client = Client(url)
        self._redis = Redis.from_url(url, socket_timeout=5.0)
        #: Number of jobs that may have been submitted by now: the load does not run ahead of the faults.
        self._released = released
        self._open: dict[str, Wish] = {}
        self._poison: list[Wish] = []
        self._poisoned = 0
        self._lock = threading.Lock()
        self.stop = threading.Event()
        #: Every acknowledged submission.
        self.wishes: dict[str, Wish] = {}
        #: Submissions repeated because the first answer did not come.
        self.repeated = 0
        self.accepted = 0
        self.last_end = time.monotonic()

    @property
    def open_jobs(self) -> int:
        """Acknowledged jobs that are not known to have ended."""
        return len(self._open)

    def run(self, wishes: Sequence[Wish]) -> None:
        """Submit all, never more at once than the plan allows."""
        waiting = list(reversed(wishes))
        while waiting and not self.stop.is_set():
            self._poll()
            with self._lock:
                batch, self._poison = self._poison, []
            room = min(self._plan.open_jobs - len(self._open), self._released() - self.accepted)
            regular = [waiting.pop() for _ in range(min(max(room, 0), len(waiting)))]
            for wish in (*batch, *regular):
                self._submit(wish)
            time.sleep(_POLL_S)

    def settle(self, silence_s: float) -> None:
        """Wait until all have ended, or nothing has for a while."""
        with self._lock:
            batch, self._poison = self._poison, []
        for wish in batch:
            self._submit(wish)
        self.last_end = time.monotonic()
        while self._open and time.monotonic() < self.last_end + silence_s:
            self._poll()
            time.sleep(_POLL_S)

    def _submit(self, wish: Wish) -> None:
        """Repeat until it is acknowledged; the key makes a repetition the same job."""
        while not self.stop.is_set():
            try:
                job = self._client.submit(
                    wish.modality, idempotency_key=f"chaos-{wish.number}", **wish.options
                )
            except QueueUnavailableError:
                self.repeated += 1
                time.sleep(_RETRY_S)
                continue
            with self._lock:
                self._open[job.id] = self.wishes[job.id] = wish
                self.accepted += not wish.poison
            return

    def _poll(self) -> None:
        """Forget the jobs that have ended."""
        jobs = list(self._open)
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for job in jobs:
                    pipe.hget(topology.JOB + job, "state")
                states = pipe.execute()
        except (RedisError, OSError):
            return
        ended = [job for job, state in zip(jobs, states, strict=True) if state in _ENDED]
        with self._lock:
            for job in ended:
                del self._open[job]
        if ended:
            self.last_end = time.monotonic()

    def add_poison(self) -> None:
        """Have a poison job submitted."""
        with self._lock:
            self._poison.append(poison(_POISON_FROM + self._poisoned))
            self._poisoned += 1

    def cancel_one(self, chance: random.Random) -> tuple[str, str] | None:
        """Cancel one of the latest jobs that are under way; None if there is none, or no server."""
        job = self._pick(chance)
        if job is None:
            return None
        try:
            return job, self._client.job(job).cancel().value
        except QueueUnavailableError:
            # It may have been done all the same: ask until the server says so.
            return job, self._cancel_again(job)

    def _cancel_again(self, job: str) -> str:
        while not self.stop.is_set():
            try:
                state = self._client.job(job).cancel()
            except QueueUnavailableError:
                time.sleep(_RETRY_S)
            else:
                return "repeated" if state is JobState.CANCELLING else state.value
        return "repeated"

    def _pick(self, chance: random.Random) -> str | None:
        with self._lock:
            recent = [
                job
                for job, wish in list(self._open.items())[-_RECENT:]
                if wish.modality == "text" and not wish.poison
            ]
        return chance.choice(recent) if recent else None

    def close(self) -> None:
        """Close the clients."""
        self._client.close()
        self._redis.close()


class Followers:
    """A few live subscribers: whatever the faults do, each must see its job's numbers in order and one end."""

    def __init__(self, url: str, load: LoadRun) -> None:
        self._url = url
        self._load = load
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(_FOLLOWERS)
        ]
        self.streams = 0
        self.complaints: list[str] = []

    def start(self) -> None:
        """Begin to follow."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the streams that are being read."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        with Client(self._url) as client:
            while not self._stop.wait(0.05):
                job = self._load._pick(chance)
                if job is not None:
                    self._follow(client, job)

    def _follow(self, client: Client, job: str) -> None:
        numbers: list[int] = []
        ended = 0
        deadline = time.monotonic() + 60
        while not ended and time.monotonic() < deadline:
            try:
                for event in client.job(job).stream(after=numbers[-1] if numbers else 0, timeout=5.0):
                    numbers.append(event.seq)
                    ended += event.terminal
            except (QueueUnavailableError, WaitTimeoutError):
                time.sleep(_RETRY_S)
        self.streams += 1
        if numbers != list(range(1, len(numbers) + 1)) or ended != 1:
            self.complaints.append(f"job {job}: a live reader saw {numbers[-5:]} at last, and {ended} ends")
