"""A simulated worker: one device, its slots and memory in one pool or one per modality, and its iterations in time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ccs_broker.contract.words import Modality
from ccs_broker.simulate.device import Device, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccs_broker.simulate.device import Run
    from ccs_broker.simulate.model import DeviceModel
    from ccs_broker.simulate.records import SimJob, Taken

__all__ = ["THIRDS", "Pool", "SimWorker", "Work", "make_worker", "part_of"]

#: What the modalities' shares of a statically divided device are, where nobody says otherwise.
THIRDS: Final = {Modality.TEXT: 1 / 3, Modality.VISION: 1 / 3, Modality.AUDIO: 1 / 3}


@dataclass(slots=True, eq=False)
class Pool:
    """Slots and memory of one worker that these modalities may take."""

    worker: SimWorker
    name: str
    modalities: tuple[Modality, ...]
    slots: int
    kv_tokens: int
    used_slots: int = 0
    used_kv_tokens: int = 0
    #: Counts up with every claim: who has listened longest is woken first.
    since: int = 0
    #: Nothing that waited did fit: it doesn't listen until then, or until its room grows.
    muted_until_s: float = -1.0
    #: When it last looked for a job to hand back.
    looked_s: float = -math.inf

    def listens(self, now_s: float) -> bool:
        """Whether a ticket would wake it."""
        settled = self.worker.starting_s < self.worker.most_starting_s
        return settled and self.used_slots < self.slots and self.muted_until_s <= now_s


@dataclass(slots=True)
class Work:
    """A job on a worker's device."""

    job: SimJob
    run: Run
    pool: Pool
    begun_s: float
    #: Expected seconds of the device until its first output; 0 once that is there.
    starting_s: float = 0.0
    #: Expected seconds of the device that beginning again would take.
    restart_s: float = 0.0


@dataclass(slots=True, eq=False)
class SimWorker:
    """Drives one device through time; the world calls it when an iteration (or a stretch of them) is over."""

    name: str
    device: Device
    pools: list[Pool] = field(default_factory=list)
    works: dict[str, Work] = field(default_factory=dict)
    #: Jobs to hand back when the iteration ends.
    leaving: list[Work] = field(default_factory=list)
    #: Names the iteration under way: an end that was called off has an old number.
    version: int = 0
    busy: bool = False
    #: It claims nothing while its jobs without output are expected to take so long of the device.
    most_starting_s: float = math.inf
    starting_s: float = 0.0
    _step: Step | None = None
    #: A stretch under way: when it began, seconds an iteration, iterations.
    _stretch: tuple[float, float, int] | None = None

    def take(self, job: SimJob, taken: Taken, pool: Pool, now_s: float) -> None:
        """Put a claimed job on the device."""
        run = self.device.add(
            job.id, job.demand, score=taken.score, floor=taken.floor, generated=job.generated
        )
        self.works[job.id] = Work(job, run, pool, now_s, starting_s=taken.first_s, restart_s=taken.first_s)
        self.starting_s += taken.first_s
        pool.used_slots += 1
        pool.used_kv_tokens += job.demand.kv_tokens

    def started(self, work: Work) -> None:
        """Its first output is there, or won't come from here."""
        self.starting_s -= work.starting_s
        work.starting_s = 0.0

    def let_go(self, work: Work) -> None:
        """Give a job's slot and memory back; its pool listens again."""
        del self.works[work.job.id]
        self.started(work)
        pool = work.pool
        pool.used_slots -= 1
        pool.used_kv_tokens -= work.job.demand.kv_tokens
        pool.muted_until_s = -1.0

    def next_end(self, now_s: float) -> float | None:
        """Begin what comes next, or cut short what goes on for longer than one iteration; when it ends.

        None: there is nothing to do, or nothing to change.
        """
        if not self.busy:
            return self._begin(now_s) if len(self.device) else None
        if self._stretch is None or not (self.device.starting or self.leaving):
            return None
        begin_s, each_s, planned = self._stretch
        iterations = max(1, math.ceil((now_s - begin_s) / each_s - 1e-9))
        if iterations >= planned:
            return None
        self._stretch = begin_s, each_s, iterations
        self.version += 1
        return begin_s + iterations * each_s

    def _begin(self, now_s: float) -> float:
        self.busy = True
        self.version += 1
        iterations = self.device.stretch()
        if iterations > 1:
            each_s = self.device.stretch_s()
            self._stretch = now_s, each_s, iterations
            return now_s + iterations * each_s
        self._step = self.device.step()
        return now_s + self._step.seconds

    def end(self) -> Step:
        """The iteration is over: what it brought."""
        self.busy = False
        if self._stretch is not None:
            iterations = self._stretch[2]
            self._stretch = None
            return self.device.skip(iterations)
        step, self._step = self._step, None
        return step or Step(0.0)


def make_worker(
    name: str, model: DeviceModel, modalities: tuple[Modality, ...], shares: Mapping[Modality, float] | None
) -> SimWorker:
    """A worker with one pool for all modalities, or with ``shares`` one per modality."""
    worker = SimWorker(name, Device(model))
    if shares is None:
        worker.pools = [Pool(worker, name, modalities, model.max_sequences, model.kv_tokens)]
        return worker
    for modality, share in shares.items():
        slots, kv_tokens = part_of(share, model.max_sequences), part_of(share, model.kv_tokens)
        worker.pools.append(Pool(worker, f"{name}.{modality}", (modality,), slots, kv_tokens))
    return worker


def part_of(share: float, whole: int) -> int:
    """A share of so many slots or tokens, rounded down."""
    return int(share * whole + 1e-9)
