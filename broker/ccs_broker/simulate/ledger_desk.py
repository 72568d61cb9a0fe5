"""The desk of a real fleet: the ledger's scripts on a private server whose clock is the simulator's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis import Redis

from ccs_broker import topology
from ccs_broker.contract.event import DELTA
from ccs_broker.contract.outcome import OutcomeState
from ccs_broker.contract.words import Overload
from ccs_broker.ledger import (
    Append,
    ClaimWish,
    Ending,
    Entry,
    LedgerCalls,
    Need,
    NotClaimed,
    Pool,
    PublishStatus,
    Room,
    Sizes,
)
from ccs_broker.policy import POLICIES
from ccs_broker.priority import EPOCH_US, Work, rank_of, urgency
from ccs_broker.scripts import virtual_time_scripts
from ccs_broker.settings import LedgerSettings
from ccs_broker.simulate.learner import Learner
from ccs_broker.simulate.records import Blocked, Taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.ledger import Call
    from ccs_broker.simulate.device import Run
    from ccs_broker.simulate.records import Offer, SimJob

__all__ = ["DeskSettings", "LedgerDesk"]

_CLOCK: Final = "ccs:clock"
#: When the trace begins: far enough behind the scores' origin that nothing is negative.
_BEGIN_US: Final = EPOCH_US + 86_400_000_000
_FOR_EVER_S: Final = 10_000_000.0
#: Bytes of a second of audio: 16-bit samples, 16,000 a second.
_BYTES_PER_AUDIO_S: Final = 32_000
#: A job's memory, in tokens of cache: coefficients of 1, prompt characters, new tokens, images, media bytes.
_NEED: Final = Need(coefficients=(0.0, 1.0, 1.0, 0.0, 0.0))
_SUCCEEDED: Final = '{"v":1,"state":"succeeded","attempts":1}'
_PREEMPTED: Final = '{"reason":"preempted"}'
#: Rank of a relegated job.
RELEGATED_RANK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskSettings:
    """Under which rules a fleet's ledger is simulated."""

    policy: str
    overload: str = "relegate"
    #: The scripts expect what was learnt of ended jobs; otherwise what the trace says.
    learnt: bool = False
    #: What doesn't fit holds up all behind it from the beginning, not after a while.
    strict: bool = False


class LedgerDesk:
    """Publishes, claims and finishes through the scripts, one connection, one call after another.

    Trace sizes stand in for what a client would tell: context tokens for characters of the prompt, generated tokens
    for the most new tokens.
    """

    def __init__(self, url: str, jobs: Sequence[SimJob], settings: DeskSettings) -> None:
        self._settings = settings
        self._policy = POLICIES[settings.policy]
        self._jobs = {job.id: job for job in jobs}
        # Leases need no renewal: a simulated worker is never lost.
        ledger = LedgerSettings(
            policy=settings.policy,
            lease_s=_FOR_EVER_S,
            sweep_s=_FOR_EVER_S,
            reserve_after_s=0.0 if settings.strict else LedgerSettings().reserve_after_s,
        )
        self._calls = LedgerCalls(ledger, virtual_time_scripts())
        self._loaded: set[str] = set()
        self._redis: Redis = Redis.from_url(url)
        self._now_s = 0.0
        self._clock_us = 0
        self._learner = None
        if settings.learnt:
            self._learner = Learner(self._calls, lambda call: self._ask(self._now_s, call))
        #: Number of the last event in each running job's log, as the claim told it.
        self._seqs: dict[str, int] = {}
        #: Commands not sent yet: those whose replies nobody waits for go with the next one that is asked.
        self._batch: list[tuple[Any, ...]] = []

    def open(self, workers: Sequence[str]) -> None:
        """Begin with an empty ledger and these workers alive."""
        self._redis.flushall()
        for name in workers:
            self._tell(0.0, self._calls.report(name, "{}", _FOR_EVER_S, ()))

    def close(self) -> None:
        """Give the connection back."""
        self._redis.close()

    def publish(self, job: SimJob, now_s: float) -> bool:
        """Submit it as a client would."""
        row, overload = job.row, Overload(self._settings.overload)
        work = Work(first_us=round(job.alone_s * 1e6), cost_us=round(job.cost_s * 1e6))
        entry = Entry(
            id=job.id,
            queue=topology.queue_of(row.modality),
            urgency=urgency(row.qos, None, policy=self._policy, overload=overload),
            payload=b"{}",
            sizes=sizes_of(job),
            tenant=row.tenant,
            overload=overload,
            work=None if self._settings.learnt else work,
        )
        call = self._calls.publish(entry)
        if overload is not Overload.REFUSE:
            # Nothing else is refused here, so the answer can wait for the next call that is asked.
            self._tell(now_s, call)
            return True
        return self._calls.read_publish(self._ask(now_s, call)).status is PublishStatus.OK

    def claim(self, offer: Offer, now_s: float) -> Taken | Blocked | None:
        """Ask the script for the best job that fits."""
        queues = tuple(map(topology.queue_of, offer.modalities))
        wish = ClaimWish(
            popped=topology.queue_of(offer.woken_by),
            queues=queues,
            worker=offer.worker,
            room=Room(
                pools=(Pool(free_bytes=offer.free_kv_tokens, total_bytes=offer.total_kv_tokens),),
                need={(queue, ""): _NEED for queue in queues},
            ),
            nudged=True,
        )
        claim = self._calls.read_claim(self._ask(now_s, self._calls.claim(wish)))
        if not isinstance(claim, NotClaimed):
            job = self._jobs[claim.id]
            job.relegated = job.relegated or claim.relegated
            self._seqs[job.id] = claim.seq
            return Taken(
                id=claim.id,
                score=claim.score,
                attempt=claim.attempt,
                floor=claim.floor,
                first_s=claim.first_us / 1e6,
                relegated=claim.relegated,
            )
        if claim.blocked is None:
            return Blocked() if claim.reason == "noroom" else None
        best = claim.blocked
        return Blocked(id=best.id, rank=best.rank, score=best.score, need_kv_tokens=best.need_bytes)

    def first_output(self, job: SimJob, now_s: float) -> None:
        """Append the first delta."""
        events = [Append(kind=DELTA, text="-")]
        after = self._seqs[job.id]
        self._tell(now_s, self._calls.append(job.id, job.attempt, events, after=after, first_output=True))

    def finish(self, job: SimJob, run: Run, now_s: float) -> None:
        """Write the outcome, and learn from the job if it ran in one piece."""
        ending = Ending(state=OutcomeState.SUCCEEDED, outcome=_SUCCEEDED, actual_us=round(job.device_s * 1e6))
        self._tell(now_s, self._calls.finish(job.id, job.attempt, ending))
        if self._learner and not job.preempted and run.first_device_s is not None:
            queue = topology.queue_of(job.row.modality)
            self._learner.add(queue, sizes_of(job), first_s=run.first_device_s, device_s=job.device_s)

    def release(self, job: SimJob, now_s: float) -> None:
        """Hand it back, as a worker that preempts it."""
        self._tell(now_s, self._calls.release(job.id, job.attempt, _PREEMPTED))

    def rank(self, job: SimJob) -> int:
        """Its class's place, or the last once it is relegated."""
        return RELEGATED_RANK if job.relegated else rank_of(job.row.qos)

    def tick(self, now_s: float) -> None:
        """Sweep and learn, as each worker does once a second."""
        self._tell(now_s, self._calls.sweep())
        if self._learner:
            self._now_s = now_s
            self._learner.push()

    def close_books(self) -> None:
        """Read from the ledger which jobs were relegated."""
        self._flush()
        jobs = list(self._jobs.values())
        with self._redis.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.hget(topology.JOB + job.id, "relegated")
            for job, relegated in zip(jobs, pipe.execute(), strict=True):
                job.relegated = relegated is not None

    def estimate_error(self) -> float | None:
        """Median relative error of the learnt estimates; None where nothing was learnt."""
        return self._learner.error() if self._learner else None

    def _tell(self, now_s: float, call: Call) -> None:
        clock_us = _BEGIN_US + round(now_s * 1e6)
        if clock_us != self._clock_us:
            self._clock_us = clock_us
            self._batch.append(("SET", _CLOCK, clock_us))
        if call.script.sha not in self._loaded:
            self._redis.script_load(call.script.source)
            self._loaded.add(call.script.sha)
        self._batch.append(call.evalsha())

    def _ask(self, now_s: float, call: Call) -> Any:
        self._tell(now_s, call)
        return self._flush()[-1]

    def _flush(self) -> list[Any]:
        with self._redis.pipeline(transaction=False) as pipe:
            for command in self._batch:
                pipe.execute_command(*command)
            self._batch.clear()
            return list(pipe.execute())


def sizes_of(job: SimJob) -> Sizes:
    """What a client would tell of it."""
    return Sizes(
        prompt_chars=job.row.context_tokens,
        new_tokens=job.row.generated_tokens,
        images=job.row.images,
        media_bytes=round(job.row.audio_s * _BYTES_PER_AUDIO_S),
    )
