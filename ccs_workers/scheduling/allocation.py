"""How a worker divides its slots among the queues it serves: fixed parts, or one pool with floors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ccs_broker import topology
from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_broker.contract import Modality
    from ccs_workers.settings import WorkerSettings

__all__ = ["STATIC", "Allocation", "allocation_of", "dynamic_allocation", "static_allocation"]

STATIC: Final = "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Which queue may take another slot; it knows no claim, only how many each queue holds."""

    slots: int
    #: Most slots of each queue; a queue that isn't named has no bound of its own.
    bounds: Mapping[str, int] = field(default_factory=dict)
    #: Slots of a queue that no other queue takes while it doesn't use them.
    floors: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """True if each queue has a part of its own."""
        return bool(self.bounds)

    def has_room(self, queue: str, busy: Mapping[str, int]) -> bool:
        """True while the queue may take another slot.

        Args:
            queue: the one that wants it.
            busy: slots in use by queue; one that isn't named uses none.
        """
        used = busy.get(queue, 0)
        if used >= self.bounds.get(queue, self.slots):
            return False
        free = self.slots - sum(busy.values())
        kept = sum(
            max(0, floor - busy.get(other, 0)) for other, floor in self.floors.items() if other != queue
        )
        return free > kept

    def share_of(self, queue: str) -> float:
        """The part of the worker's memory that the queue may fill, from 0 to 1."""
        return self.bounds[queue] / self.slots if self.is_static else 1.0


def allocation_of(settings: WorkerSettings, modalities: Sequence[Modality]) -> Allocation:
    """The allocation that a worker of these modalities was told.

    Raises:
        ConfigurationError: what it was told doesn't fit together.
    """
    queues = tuple(map(topology.queue_of, modalities))
    if settings.allocation == STATIC:
        if settings.floors:
            raise ConfigurationError(
                "floors belong to --allocation dynamic; under static give --slots text=8,..."
            )
        return static_allocation(settings.slots, _by_queue(settings.slot_parts), queues)
    if settings.slot_parts:
        raise ConfigurationError(
            "slots of each modality belong to --allocation static; under dynamic give --slots 16 --floors text=2,..."
        )
    return dynamic_allocation(settings.slots, _by_queue(settings.floors), queues)


def _by_queue(parts: Mapping[Modality, int]) -> dict[str, int]:
    return {topology.queue_of(modality): slots for modality, slots in parts.items()}


def static_allocation(slots: int, parts: Mapping[str, int], queues: Sequence[str]) -> Allocation:
    """Fixed parts: those given, else equal ones.

    Args:
        slots: all of them.
        parts: slots by queue, or none to divide them equally; the first queues then get what is left over.
        queues: those the worker serves, at least one.

    Raises:
        ConfigurationError: a queue would have no slot, or one is named that isn't served.
    """
    if parts:
        _refuse_strangers(parts, queues)
    else:
        each, over = divmod(slots, len(queues))
        parts = {queue: each + (place < over) for place, queue in enumerate(queues)}
    if without := [queue for queue in queues if parts.get(queue, 0) < 1]:
        raise ConfigurationError(
            f"static allocation leaves {_modality(without[0])} without a slot: give it one "
            "with --slots, or take --allocation dynamic"
        )
    return Allocation(slots=sum(parts.values()), bounds=dict(parts))


def dynamic_allocation(slots: int, floors: Mapping[str, int], queues: Sequence[str]) -> Allocation:
    """One pool with floors.

    Raises:
        ConfigurationError: the floors are more than there is, or one is named that isn't served.
    """
    _refuse_strangers(floors, queues)
    if sum(floors.values()) > slots:
        raise ConfigurationError(f"the floors add up to {sum(floors.values())} slots, the worker has {slots}")
    return Allocation(slots=slots, floors=dict(floors))


def _refuse_strangers(parts: Mapping[str, int], queues: Sequence[str]) -> None:
    if strangers := [queue for queue in parts if queue not in queues]:
        raise ConfigurationError(
            f"slots are set aside for {_modality(strangers[0])}, which isn't served here"
        )


def _modality(queue: str) -> str:
    return queue.rpartition(".")[2]
