"""Priority inversions at claim, over 10,000 claims under full load; 0 is the bar.

``python -m benchmarks.inversions``. Two publishers keep more waiting than the claimers take; four claimers with memory
for some of it, serving different models over all queues, claim, append, finish and hand back at the same time. Each
writes down what it offered and when, by its own clock before and after each call; the jobs are known, and their scores
are those that their `started` events and hashes tell. Afterwards a checker that shares nothing with the scripts but the
score goes over the whole: a claim is an inversion if a job with a lower score, of a queue and model that this worker
had offered to take, had been waiting for longer than a round trip, and fitted. Turns of the floor and memory that is
kept for a job are told apart: they are what the policy is meant to do, and counted.
"""

from __future__ import annotations

import heapq
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from redis import Redis

from benchmarks.report import Figure, show
from ccs_broker import topology
from ccs_broker.contract import QosClass
from ccs_broker.contract.outcome import OutcomeState
from ccs_broker.ledger import Claim, ClaimWish, Ending, Entry, Ledger, Need, NotClaimed, Pool, Room, Sizes
from ccs_broker.policy import BALANCED
from ccs_broker.priority import Work, urgency
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable

CLAIMS: Final = 10_000
CLAIMERS: Final = 4
BACKLOG: Final = 400
MEMORY: Final = 10_000
QUEUES: Final = topology.QUEUES[:3]
MODELS: Final = ("", "a", "b", "c")
OFFERS: Final = (("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c"))
#: Jobs that a worker holds at once; what it holds is its memory in use.
HELD: Final = 6
NEED: Final = {
    (queue, model): Need(coefficients=(0.0, 0.0, 0.0, 0.0, 1.0)) for queue in QUEUES for model in MODELS
}


@dataclass(slots=True)
class Seen:
    """One job as its publisher and its claimers saw it; times are of one clock, in seconds."""

    queue: str
    model: str
    rank: int
    memory: int
    #: When it surely waited from, and until when it may have: a round trip more or less.
    since: float
    until: float = float("inf")
    #: Intervals in which it waited before.
    past: list[tuple[float, float]] = field(default_factory=list)
    score: int | None = None
    low: int | None = None
    relegated_at: float = float("inf")


@dataclass(slots=True, kw_only=True)
class Taken:
    """One claim, with what was offered."""

    job: str
    sent: float
    answered: float
    models: tuple[str, ...]
    free: int
    score: int
    floor: bool


class Field:
    """The jobs, the claims, and the threads that make them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.jobs: dict[str, Seen] = {}
        self.taken: list[Taken] = []
        self.kept: list[tuple[float, float]] = []
        self.round_trips: list[float] = []
        self.errors: list[BaseException] = []
        self.lock = threading.Lock()
        self.done = threading.Event()

    def publish(self, seed: int) -> None:
        """Keep a backlog of all classes, queues, models and sizes."""
        pick = random.Random(seed)
        with Redis.from_url(self.url) as redis:
            ledger = Ledger(redis)
            while not self.done.is_set():
                if sum(redis.zcard(topology.WAITING + queue) for queue in QUEUES) > BACKLOG:
                    time.sleep(0.002)
                    continue
                for _ in range(20):
                    self._publish_one(ledger, pick)

    def _publish_one(self, ledger: Ledger, pick: random.Random) -> None:
        qos = pick.choice(list(QosClass))
        first_us = pick.choice((2_000, 20_000, 200_000))
        entry = Entry(
            id=f"{pick.getrandbits(96):024x}",
            queue=pick.choice(QUEUES),
            urgency=urgency(qos, None),
            payload=b"{}",
            model=pick.choice(MODELS),
            tenant=f"t{pick.randrange(5)}",
            sizes=Sizes(media_bytes=pick.choice((10, 300, 2_500, 6_000))),
            work=Work(first_us=first_us, cost_us=2 * first_us),
        )
        sent = time.monotonic()
        ledger.publish(entry)
        answered = time.monotonic()
        with self.lock:
            self.round_trips.append(answered - sent)
            self.jobs[entry.id] = Seen(
                entry.queue, entry.model, entry.urgency.rank, entry.sizes.media_bytes, answered
            )

    def work(self, number: int) -> None:
        """Claim, hold a few, end the oldest; every tenth is handed back."""
        pick, held, models = random.Random(number), [], OFFERS[number]
        with Redis.from_url(self.url) as redis:
            ledger = Ledger(redis)
            while not self.done.is_set():
                if len(held) >= HELD:
                    self._end(ledger, held.pop(0), back=pick.random() < 0.1)
                queue = pick.choice(QUEUES)
                if redis.rpop(topology.tickets_of(queue)) is None:
                    continue
                free = MEMORY - sum(self.jobs[claim.id].memory for claim in held)
                claim = self._claim(ledger, ClaimWish(
                    popped=queue, queues=QUEUES, worker=f"w{number}", models=models,
                    room=Room(pools=(Pool(free_bytes=free, total_bytes=MEMORY),), need=NEED),
                ))  # fmt: skip
                if claim is not None:
                    held.append(claim)
                elif held:
                    self._end(ledger, held.pop(0), back=False)

    def _claim(self, ledger: Ledger, wish: ClaimWish) -> Claim | None:
        sent = time.monotonic()
        claim = ledger.claim(wish)
        answered = time.monotonic()
        assert wish.room is not None
        with self.lock:
            self.round_trips.append(answered - sent)
            if isinstance(claim, NotClaimed):
                self.kept += [(sent, answered)] if claim.blocked is not None else []
                return None
            # Published by another thread that hasn't written it down yet.
            while claim.id not in self.jobs:
                self.lock.release()
                time.sleep(0.0005)
                self.lock.acquire()
            self.jobs[claim.id].until = sent
            self.taken.append(
                Taken(job=claim.id, sent=sent, answered=answered, models=wish.models,
                      free=wish.room.pools[0].free_bytes, score=claim.score, floor=claim.floor)
            )  # fmt: skip
            if len(self.taken) >= CLAIMS:
                self.done.set()
        return claim

    def _end(self, ledger: Ledger, claim: Claim, *, back: bool) -> None:
        if not back:
            ledger.finish(claim.id, claim.attempt, Ending(state=OutcomeState.SUCCEEDED, outcome="{}"))
            return
        with self.lock:
            seen = self.jobs[claim.id]
            seen.past.append((seen.since, seen.until))
            seen.since = seen.until = float("inf")
        ledger.release(claim.id, claim.attempt)
        with self.lock:
            self.jobs[claim.id].since = time.monotonic()

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        """A thread's whole: its error ends the run."""
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - loop edge: told in the main thread
            self.errors.append(error)
            self.done.set()


def read_scores(redis: Redis, jobs: dict[str, Seen], offset: float) -> None:
    """Each job's score from its hash, and when it was relegated from its log."""
    for job_id, seen in jobs.items():
        score, low = redis.hmget(topology.JOB + job_id, "score", "low")
        seen.score, seen.low = int(score or 0), int(low or score or 0)
        for _, event in redis.xrange(topology.LOG + job_id):
            if b"relegated" in event.get(b"d", b""):
                seen.relegated_at = int(event[b"t"]) / 1000 - offset


def inversions(jobs: dict[str, Seen], taken: list[Taken], slack: float) -> tuple[int, int]:
    """Claims that went past a better job that was eligible, and turns of the floor that did.

    Args:
        jobs: every job by its id.
        taken: every claim.
        slack: seconds of a round trip, by which a job must have waited before a claim was sent, and after.
    """
    spans = sorted(
        (since + slack, until - slack, job_id)
        for job_id, seen in jobs.items()
        for since, until in [*seen.past, (seen.since, seen.until)]
    )
    wrong = floor = begun = 0
    waiting: list[tuple[float, str]] = []
    for claim in sorted(taken, key=lambda each: each.sent):
        while begun < len(spans) and spans[begun][0] < claim.sent:
            heapq.heappush(waiting, spans[begun][1:])
            begun += 1
        while waiting and waiting[0][0] <= claim.sent:
            heapq.heappop(waiting)
        better = any(
            until > claim.answered and job_id != claim.job and _is_better(jobs[job_id], claim, slack)
            for until, job_id in waiting
        )
        floor += better and claim.floor
        wrong += better and not claim.floor
    return wrong, floor


def _is_better(seen: Seen, claim: Taken, slack: float) -> bool:
    # Around the moment of its relegation either score may have counted.
    relegated = seen.relegated_at < claim.answered + slack
    score = seen.low if relegated else seen.score
    assert score is not None
    if score >= claim.score or seen.model not in ("", *claim.models):
        return False
    rank = 4 if relegated else seen.rank
    kept = round((1 - BALANCED.headroom[rank]) * MEMORY)
    # One that is larger than its class's share may have all that is free.
    return seen.memory <= claim.free - (kept if seen.memory <= MEMORY - kept else 0)


def main() -> bool:
    """Run, check, print; True if there is no inversion."""
    with EmbeddedServer() as server, Redis.from_url(server.url) as redis:
        field_ = Field(server.url)
        threads = [threading.Thread(target=field_.run, args=(field_.publish, n)) for n in range(2)]
        threads += [threading.Thread(target=field_.run, args=(field_.work, n)) for n in range(CLAIMERS)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if field_.errors:
            raise field_.errors[0]
        seconds = time.monotonic() - begun
        clock = redis.time()
        read_scores(redis, field_.jobs, clock[0] + clock[1] / 1e6 - time.monotonic())
    slack = sorted(field_.round_trips)[len(field_.round_trips) // 2]
    wrong, floor = inversions(field_.jobs, field_.taken, slack)
    return show(
        f"{len(field_.taken)} claims by {CLAIMERS} workers in {seconds:.0f} s, {len(field_.jobs)} jobs",
        [
            Figure(name="inversions", value=wrong, bar=0, at_most=True),
            Figure(name="turns of the floor", value=sum(each.floor for each in field_.taken)),
            Figure(name="of them before a better job, as is meant", value=floor),
            Figure(name="claims answered with a job that lacks memory", value=len(field_.kept)),
            Figure(name="round trip, median", value=1e3 * slack, unit="ms"),
        ],
    )


if __name__ == "__main__":
    sys.exit(not main())
