"""The simulated world: arrivals, workers and their devices on one virtual clock, as events in order of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from ccs_broker.simulate.records import Blocked, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccs_broker.contract.words import Modality
    from ccs_broker.simulate.records import Desk, SimJob
    from ccs_broker.simulate.worker import Pool, SimWorker, Work

__all__ = ["World"]

#: Seconds for which a pool that found nothing that fits doesn't listen.
MUTE_S: Final = 1.0
#: Seconds between two sweeps of one worker.
SWEEP_S: Final = 1.0
#: A job of this rank or below is worth waking a pool that found nothing that fits.
URGENT_RANK: Final = 1
#: Handing a running job back, so that an urgent one can run: seconds between two looks, seconds that a job runs first
#: and how often it may be handed back, so that nothing is ever thrown back and forth.
LOOK_S: Final = 0.5
SETTLED_S: Final = 2.0
#: How many times as long as its beginning, which is done again, it runs first.
SETTLED_PER_RESTART: Final = 20
MOST_PREEMPTIONS: Final = 2
#: How much more urgent a job must be than the one that makes room for it, in places of classes.
CLEARLY: Final = 2
#: How many jobs pass between two calls of ``on_progress``.
_PROGRESS_EVERY: Final = 50


@dataclass(slots=True, eq=False)
class World:
    """Runs jobs through a desk and workers until each has ended; the jobs then hold what became of them.

    As in a real fleet, a pool with a free slot listens; an arrival wakes the one that has listened longest, which
    claims at once; the claimed job joins the device's next iteration. A pool that hears that nothing fits is deaf
    for a second, until its room grows, or until an urgent job is published.
    """

    jobs: Sequence[SimJob]
    workers: Sequence[SimWorker]
    desk: Desk
    on_progress: Callable[[int, int], None] | None = None
    preempts: bool = False
    now_s: float = 0.0
    ended: int = 0
    #: Seconds in which some device worked, summed over the devices.
    busy_s: float = 0.0
    _by_id: dict[str, SimJob] = field(default_factory=dict)
    _waiting: dict[str, int] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _orders: int = 0
    #: Whether the next sweep is among the events.
    _ticks: bool = False

    def run(self) -> float:
        """Let time pass until every job has ended or was refused; the time of the last end."""
        self._by_id = {job.id: job for job in self.jobs}
        for job in self.jobs:
            self._at(job.row.arrival_s, partial(self._arrive, job))
        self._keep_ticking()
        while self.ended < len(self.jobs):
            self.now_s = self._events[0][0]
            # Whatever happens at one time has happened before anybody claims.
            while self._events and self._events[0][0] == self.now_s:
                heappop(self._events)[2]()
            self._dispatch()
            for worker in self.workers:
                self._go_on(worker)
        return self.now_s

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        self._orders += 1
        heappush(self._events, (time_s, self._orders, action))

    def _pools(self) -> list[Pool]:
        return [pool for worker in self.workers for pool in worker.pools]

    def _arrive(self, job: SimJob) -> None:
        self._keep_ticking()
        fits = any(
            pool.slots and job.row.modality in pool.modalities and job.demand.kv_tokens <= pool.kv_tokens
            for pool in self._pools()
        )
        if not fits or not self.desk.publish(job, self.now_s):
            job.refused = True
            self._count_ended()
            return
        self._now_waits(job)

    def _now_waits(self, job: SimJob) -> None:
        modality = job.row.modality
        self._waiting[modality] = self._waiting.get(modality, 0) + 1
        if self.desk.rank(job) > URGENT_RANK:
            return
        pools = [pool for pool in self._pools() if modality in pool.modalities]
        deaf = [pool for pool in pools if pool.used_slots < pool.slots and not pool.listens(self.now_s)]
        if deaf and not any(pool.listens(self.now_s) for pool in pools):
            self._claim(min(deaf, key=lambda pool: pool.since), modality)

    def _tick(self) -> None:
        """Sweep; again and again while there is anything to sweep, so that an idle year is no work."""
        self.desk.tick(self.now_s)
        self._ticks = len(self._by_id) > self.ended and self._is_busy()
        if self._ticks:
            self._at(self.now_s + self._tick_s, self._tick)

    def _is_busy(self) -> bool:
        return any(self._waiting.values()) or any(pool.used_slots for pool in self._pools())

    def _keep_ticking(self) -> None:
        if not self._ticks:
            self._ticks = True
            self._at((int(self.now_s / self._tick_s) + 1) * self._tick_s, self._tick)

    @property
    def _tick_s(self) -> float:
        return SWEEP_S / len(self.workers)

    def _dispatch(self) -> None:
        """Wake listeners while there is something to claim."""
        while True:
            able = [
                pool
                for pool in self._pools()
                if pool.listens(self.now_s) and any(self._waiting.get(word) for word in pool.modalities)
            ]
            if not able:
                return
            pool = min(able, key=lambda pool: pool.since)
            self._claim(pool, next(word for word in pool.modalities if self._waiting.get(word)))

    def _claim(self, pool: Pool, woken_by: Modality) -> None:
        offer = Offer(
            worker=pool.name,
            modalities=pool.modalities,
            woken_by=woken_by,
            free_kv_tokens=pool.kv_tokens - pool.used_kv_tokens,
            total_kv_tokens=pool.kv_tokens,
        )
        taken = self.desk.claim(offer, self.now_s)
        self._orders += 1
        pool.since = self._orders
        if taken is None or isinstance(taken, Blocked):
            pool.muted_until_s = self.now_s + MUTE_S
            self._at(pool.muted_until_s, lambda: None)
            if isinstance(taken, Blocked) and taken.id:
                self._make_room(pool, taken)
            return
        job = self._by_id[taken.id]
        self._waiting[job.row.modality] -= 1
        job.attempt = taken.attempt
        job.floor = job.floor or taken.floor
        pool.worker.take(job, taken, pool, self.now_s)

    def _go_on(self, worker: SimWorker) -> None:
        end_s = worker.next_end(self.now_s)
        if end_s is not None:
            version = worker.version
            self._at(end_s, partial(self._iteration_ends, worker, version))

    def _iteration_ends(self, worker: SimWorker, version: int) -> None:
        if version != worker.version:
            return
        step = worker.end()
        self.busy_s += step.seconds
        for run in step.first:
            work = worker.works[run.key]
            worker.started(work)
            if work.job.first_s is None:
                work.job.first_s = self.now_s
                self.desk.first_output(work.job, self.now_s)
        for run in step.ended:
            work = worker.works[run.key]
            self._leave(worker, work)
            work.job.end_s = self.now_s
            self.desk.finish(work.job, run, self.now_s)
            self._count_ended()

        for work in worker.leaving:
            if work.job.id in worker.works:
                self._hand_back(worker, work)
        worker.leaving.clear()

    def _make_room(self, pool: Pool, urgent: Blocked) -> None:
        """Mark the least urgent running job to be handed back, if the one that waits is clearly more urgent."""
        if not self.preempts or urgent.rank > URGENT_RANK or self.now_s - pool.looked_s < LOOK_S:
            return
        pool.looked_s = self.now_s
        free = pool.kv_tokens - pool.used_kv_tokens
        yielding = [
            work
            for work in pool.worker.works.values()
            if work.pool is pool
            and self.desk.rank(work.job) >= urgent.rank + CLEARLY
            and work.run.score > urgent.score
            and free + work.job.demand.kv_tokens >= urgent.need_kv_tokens
            and self.now_s - work.begun_s >= max(SETTLED_S, SETTLED_PER_RESTART * work.restart_s)
            and work.job.preempted < MOST_PREEMPTIONS
        ]
        if yielding and not pool.worker.leaving:
            pool.worker.leaving.append(
                max(yielding, key=lambda work: (self.desk.rank(work.job), work.run.score))
            )

    def _hand_back(self, worker: SimWorker, work: Work) -> None:
        worker.device.remove(work.run)
        self._leave(worker, work)
        work.job.preempted += 1
        self.desk.release(work.job, self.now_s)
        self._waiting[work.job.row.modality] += 1

    def _leave(self, worker: SimWorker, work: Work) -> None:
        worker.let_go(work)
        work.job.generated = work.run.generated
        work.job.device_s += work.run.device_s

    def _count_ended(self) -> None:
        self.ended += 1
        if self.on_progress and (self.ended % _PROGRESS_EVERY == 0 or self.ended == len(self.jobs)):
            self.on_progress(self.ended, len(self.jobs))
