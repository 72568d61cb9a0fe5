"""What the command line hands to a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccs_workers.settings import DEFAULT_SLOTS, DEFAULT_UNLOAD_IDLE_S, MemoryWish, SlotPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ccs_broker.contract import Modality


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of ``ccs worker``, checked for form but not yet against the machine."""

    url: str
    model_file: Path
    #: Empty: every modality the model file serves.
    modalities: tuple[str, ...] = ()
    slots: SlotPlan = field(default_factory=lambda: SlotPlan(total=DEFAULT_SLOTS))
    device: str = "auto"
    memory: MemoryWish = field(default_factory=MemoryWish)
    unload_idle_s: float = DEFAULT_UNLOAD_IDLE_S
    allocation: str = "dynamic"
    #: Slots of a modality that others don't take, under dynamic allocation.
    floors: Mapping[Modality, int] = field(default_factory=dict)
    #: None: a name that is unique by construction.
    name: str | None = None
    #: Seconds that running jobs have to end at shutdown, before they are handed back.
    drain_s: float = 0.0
    #: Where the health endpoint listens; no port: nowhere.
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    loglevel: str = "INFO"
    #: Further arguments for Celery's own worker command.
    extra: tuple[str, ...] = ()
