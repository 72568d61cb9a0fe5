"""What a worker is to the ledger: its name, what it serves, and how much of that at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Final, Protocol

from ccs_broker.contract import Job
from ccs_broker.contract.wire import load_json
from ccs_broker.errors import CcsError
from ccs_broker.ledger import Room
from ccs_broker.ledger.entries import sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_broker.ledger import Claim

#: Name of a consumer that was given none.
NAMELESS: Final = "unnamed"

#: Bytes of a job: coefficients of 1, prompt characters, new tokens, images and media bytes.
Need = tuple[float, float, float, float, float]


class SlotRules(Protocol):
    """How slots are divided among queues."""

    @property
    def is_static(self) -> bool:
        """True if each queue has slots and memory of its own; jobs then don't compete over queues."""

    def has_room(self, queue: str, busy: Mapping[str, int]) -> bool:
        """True while the queue may take another slot; ``busy`` counts the slots in use by queue."""

    def share_of(self, queue: str) -> float:
        """The part of the memory that the queue's jobs may fill, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory for jobs, and what each kind of job needs of it."""

    total_bytes: int
    #: By queue and model alias, "" for jobs that name none.
    need: Mapping[tuple[str, str], Need]

    def bytes_for(self, queue: str, model: str, sizes: Sequence[int]) -> int:
        """What a job of these sizes needs; ``model`` is the alias it names, or empty."""
        need = self.need.get((queue, model))
        return 0 if need is None else math.ceil(sum(map(mul, need, (1, *sizes))))

    def bytes_of(self, claim: Claim) -> int:
        """What a claimed job occupies until its end; 0 for one that isn't ours or can't be read."""
        if not claim.payload or claim.links:
            return 0
        try:
            job = load_json(Job, claim.payload)
        except CcsError:
            return 0
        return self.bytes_for(claim.queue, job.model or "", sizes_of(job).values())

    def room(self, share: float, used_bytes: int) -> Room:
        """What is left of a share of it."""
        total = int(self.total_bytes * share)
        return Room(free_bytes=max(0, total - used_bytes), total_bytes=total, need=self.need)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProfile:
    """What a worker tells the ledger when it claims."""

    name: str = NAMELESS
    #: Aliases served; empty: any.
    models: tuple[str, ...] = ()
    #: Most claims held at once; None: no bound of ours (Celery's own still holds).
    slots: int | None = None
    #: How they are divided among the queues; None: whoever comes first.
    rules: SlotRules | None = None
    #: None: memory is no bound.
    memory: Memory | None = None
