"""What a worker is to the ledger: its name, what it serves, and how much of that at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ccs_broker.contract import Job
from ccs_broker.contract.wire import load_json
from ccs_broker.errors import CcsError
from ccs_broker.ledger.entries import sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from ccs_broker.ledger import Claim, Pool, Room

#: Name of a consumer that was given none.
NAMELESS: Final = "unnamed"


class SlotRules(Protocol):
    """How slots are divided among queues."""

    @property
    def is_static(self) -> bool:
        """True if each queue has slots and memory of its own; jobs then don't compete over queues."""

    def has_room(self, queue: str, busy: Mapping[str, int]) -> bool:
        """True while the queue may take another slot; ``busy`` counts the slots in use by queue."""

    def share_of(self, queue: str) -> float:
        """The part of the memory that the queue's jobs may fill, from 0 to 1."""


class Memory(Protocol):
    """Who holds which memory of a worker's device."""

    def room(self, queue: str, share: float) -> Room:
        """What claims may take; of memory that kinds of jobs share, the queue's own share, from 0 to 1."""

    def offering(self) -> AbstractContextManager[None]:
        """Nobody but claims takes memory meanwhile: from the room that a claim is told until its job holds it."""

    def reserve(self, key: tuple[str, int], queue: str, model: str, sizes: Sequence[int]) -> int:
        """A claimed job holds what it needs from now on, in bytes; ``model`` is the alias it names, or empty."""

    def release(self, key: tuple[str, int]) -> None:
        """A claim has ended; an unknown one is fine."""

    def bytes_for(self, queue: str, model: str, sizes: Sequence[int]) -> int:
        """What a job of these sizes would hold."""

    def room_without(self, key: tuple[str, int], queue: str, model: str) -> Pool | None:
        """The memory that jobs of a kind could take if that claim had ended; None if they need none."""


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


def sizes_of_claim(claim: Claim) -> tuple[str, tuple[int, int, int, int]] | None:
    """The model that a claimed job names, or empty, and its sizes; None if it isn't ours or has ended."""
    if not claim.payload or claim.links:
        return None
    try:
        job = load_json(Job, claim.payload)
    except CcsError:
        return None
    return job.model or "", sizes_of(job).values()
