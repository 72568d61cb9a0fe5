"""Preemption: while a worker is full, a clearly more urgent job takes the place of the least urgent running one.

The job that makes way is handed back and continued later, here or elsewhere, behind what it has said. What keeps the
peace: only jobs of the two most urgent classes take places, only from jobs two classes below or from relegated ones,
and only where the ledger's next claim will prefer the newcomer, since its score is the better one; a job runs in peace
for its first seconds, and for twenty times as long as beginning again will take, so that restarts cost a twentieth of
the device at most; it makes way at most twice in its life; a worker lets one job go at a time, and one waiting job
moves one worker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ccs_broker import topology

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from ccs_broker.transport import ClaimTable

__all__ = ["LOOK_EVERY_S", "MOST_PREEMPTIONS", "Newcomer", "Preemptor", "Running", "victim_of"]

#: Seconds between two looks.
LOOK_EVERY_S: Final = 0.5
#: Seconds an attempt runs in peace.
PEACE_S: Final = 2.0
#: How many times as long as its expected beginning, up to the first output, which is done again.
PEACE_PER_RESTART: Final = 20
#: How often a job makes way.
MOST_PREEMPTIONS: Final = 2
#: Rank of the last class that takes places, and classes between it and those whose places it takes.
URGENT_RANK: Final = 1
RANKS_APART: Final = 2
#: Seconds for which a waiting job moves no other worker.
_CLAIMED_S: Final = 2.0
_FIELDS: Final = ("rank", "relegated", "queue", "model", "sizes")
#: Part of the memory that stays free for jobs of the very first class.
_HEADROOM: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """The job that would be claimed next if there were room."""

    id: str
    queue: str
    rank: int
    score: float
    relegated: bool = False
    model: str = ""
    need_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running job that could make way."""

    key: tuple[str, int]
    queue: str
    rank: int
    score: float
    relegated: bool
    #: Seconds for which this attempt has run.
    ran_s: float
    #: Seconds of the device that it will take to begin again.
    restart_s: float
    preempted: int
    make_way: Callable[[], None]


def victim_of(newcomer: Newcomer, running: Sequence[Running]) -> Running | None:
    """The job that makes way for a newcomer: the least urgent of those that may; None if none may."""
    if newcomer.rank > URGENT_RANK or newcomer.relegated:
        return None
    able = [
        job
        for job in running
        if (job.relegated or job.rank >= newcomer.rank + RANKS_APART)
        and job.score > newcomer.score
        and job.ran_s >= max(PEACE_S, PEACE_PER_RESTART * job.restart_s)
        and job.preempted < MOST_PREEMPTIONS
    ]
    return max(able, key=lambda job: (job.relegated, job.rank, job.score), default=None)


class Preemptor:
    """One per worker; :meth:`look` is called now and again by one thread."""

    def __init__(
        self,
        redis: Redis,
        claims: ClaimTable,
        lanes: Sequence[tuple[str, str]],
        running: Callable[[], Sequence[Running]],
    ) -> None:
        """Serve these lanes (queue, and model or ""); ``running`` tells the jobs that an engine works on now."""
        self._redis = redis
        self._claims = claims
        self._lanes = lanes
        self._running = running
        #: Until then, the job that was last told to go is awaited to have gone.
        self._leaving_until = 0.0

    def look(self) -> None:
        """Let a job make way, if one waits for which one should. Errors of the server pass through."""
        now = time.monotonic()
        if self._claims.closed or now < self._leaving_until:
            return
        blocked = self._claims.blocked(LOOK_EVERY_S * 3)
        if blocked is None and self._claims.has_slot():
            return
        if blocked is not None and self._claims.has_slot():
            newcomer = self._waiting(blocked.id, blocked.score)
        else:
            newcomer = self._best_waiting()
        if newcomer is None:
            return
        able = [job for job in self._running() if self._helps(job, newcomer)]
        victim = victim_of(newcomer, able)
        if victim is None or not self._speak_for(newcomer):
            return
        self._leaving_until = now + _CLAIMED_S
        victim.make_way()

    def _helps(self, job: Running, newcomer: Newcomer) -> bool:
        """Whether the newcomer could take this job's place."""
        memory = self._claims.profile.memory
        if memory is not None and newcomer.need_bytes:
            pool = memory.room_without(job.key, newcomer.queue, newcomer.model)
            if pool is not None:
                free_bytes = pool.free_bytes - newcomer.rank * _HEADROOM * pool.total_bytes
                if newcomer.need_bytes > free_bytes:
                    return False
        rules, busy = self._claims.profile.rules, self._claims.busy_by_queue()
        busy[job.queue] = busy.get(job.queue, 1) - 1
        return rules is None or rules.has_room(newcomer.queue, busy)

    def _best_waiting(self) -> Newcomer | None:
        """The waiting job with the best score, of those this worker serves."""
        with self._redis.pipeline(transaction=False) as pipe:
            for queue, model in self._lanes:
                pipe.zrange(topology.lane_of(queue, model), 0, 0, withscores=True)
            heads = [head for lane in pipe.execute() for head in cast("list[tuple[bytes, float]]", lane)]
        if not heads:
            return None
        job_id, score = min(heads, key=lambda head: head[1])
        return self._waiting(job_id.decode(), score)

    def _waiting(self, job_id: str, score: float) -> Newcomer | None:
        found = cast("list[bytes | None]", self._redis.hmget(topology.JOB + job_id, _FIELDS))
        rank, relegated, queue, model, sizes = ((value or b"").decode() for value in found)
        if not rank or not queue:
            return None
        memory = self._claims.profile.memory
        return Newcomer(
            id=job_id,
            queue=queue,
            rank=int(rank),
            score=score,
            relegated=bool(relegated),
            model=model,
            need_bytes=0
            if memory is None
            else memory.bytes_for(queue, model, tuple(map(int, sizes.split()))),
        )

    def _speak_for(self, newcomer: Newcomer) -> bool:
        """Whether this worker is the one that makes room for it."""
        key, name = topology.PREEMPTING + newcomer.id, self._claims.profile.name
        return bool(self._redis.set(key, name, nx=True, px=int(_CLAIMED_S * 1000)))
