"""What the simulated world is made of: jobs, what a pool of slots offers, and the desk that hands jobs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ccs_broker.contract.words import Modality
    from ccs_broker.simulate.device import Run
    from ccs_broker.simulate.model import Demand, DeviceModel
    from ccs_broker.simulate.trace import Row

__all__ = ["Blocked", "Desk", "Offer", "SimJob", "Taken", "jobs_of"]


@dataclass(slots=True, eq=False)
class SimJob:
    """One request of the trace and what became of it; times are seconds from the trace's beginning."""

    id: str
    row: Row
    demand: Demand
    target_s: float
    #: Seconds until its first token with a device to itself.
    alone_s: float
    #: Seconds of its own work on a device.
    cost_s: float
    first_s: float | None = None
    end_s: float | None = None
    refused: bool = False
    relegated: bool = False
    #: Claimed because of its age, out of its turn.
    floor: bool = False
    attempt: int = 0
    preempted: int = 0
    #: Over its attempts so far: tokens given, and seconds of a device used.
    generated: int = 0
    device_s: float = 0.0

    @property
    def attainable(self) -> bool:
        """Whether its own work, alone on the device, meets its target."""
        return self.alone_s <= self.target_s

    @property
    def wait_s(self) -> float | None:
        """Seconds from arrival to first output; None where there was none."""
        return None if self.first_s is None else self.first_s - self.row.arrival_s

    @property
    def met(self) -> bool:
        """Whether its first output came in time; a refused job's never does."""
        return self.wait_s is not None and self.wait_s <= self.target_s


def jobs_of(rows: list[Row], model: DeviceModel) -> list[SimJob]:
    """Fresh jobs for one run over a trace."""
    jobs = []
    for number, row in enumerate(rows):
        demand = model.demand(
            images=row.images,
            audio_s=row.audio_s,
            context_tokens=row.context_tokens,
            new_tokens=row.generated_tokens,
        )
        job = SimJob(
            id=f"sim{number:06d}",
            row=row,
            demand=demand,
            target_s=model.targets_first_output_s[row.qos],
            alone_s=model.alone_s(demand),
            cost_s=model.cost_s(demand),
        )
        jobs.append(job)
    return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a pool of slots asks the desk for: the best job of these modalities that fits."""

    worker: str
    modalities: tuple[Modality, ...]
    #: Of which a job is known to wait: the one whose ticket woke the pool.
    woken_by: Modality
    free_kv_tokens: int
    total_kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A job claimed, with its place on the device."""

    id: str
    score: float
    attempt: int = 1
    floor: bool = False
    #: Expected seconds of the device until its first output.
    first_s: float = 0.0
    relegated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Jobs wait, none that fits; the best of them, where the desk knows."""

    id: str = ""
    rank: int = 0
    #: Low first.
    score: float = 0.0
    need_kv_tokens: int = 0


class Desk(Protocol):
    """Whoever keeps the waiting jobs: the ledger's scripts, or a plain list in arrival order."""

    def publish(self, job: SimJob, now_s: float) -> bool:
        """Put a job among the waiting; False if it was refused."""
        ...

    def claim(self, offer: Offer, now_s: float) -> Taken | Blocked | None:
        """Hand out the best job that fits; None: nothing waits."""
        ...

    def first_output(self, job: SimJob, now_s: float) -> None:
        """A job gave its first token."""
        ...

    def finish(self, job: SimJob, run: Run, now_s: float) -> None:
        """A job gave its last token."""
        ...

    def release(self, job: SimJob, now_s: float) -> None:
        """A running job is handed back to its place among the waiting."""
        ...

    def rank(self, job: SimJob) -> int:
        """How urgent a job counts at the moment: 0 to 3 by class, 4 once relegated."""
        ...

    def tick(self, now_s: float) -> None:
        """What time brings about; once a second and more often with more workers."""
        ...
