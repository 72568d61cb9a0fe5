"""Where a worker's engines run, and how much memory they and their jobs may use there."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from ccs_workers.admission.budget import DeviceBudget
from ccs_workers.admission.footprints import Footprints, whole_number
from ccs_workers.admission.ledger import MemoryLedger
from ccs_workers.devices import find_device, start_up
from ccs_workers.executor.pool import Place
from ccs_workers.executor.residency import lanes_of

if TYPE_CHECKING:
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.settings import WorkerSettings

__all__ = ["place_for"]

logger = logging.getLogger(__name__)

#: Longest wait for another worker that loads a model on the same device.
_START_UP_S: Final = 900.0


def place_for(settings: WorkerSettings, models: ModelFile) -> Place:
    """The device that a worker was told, with a ledger of the memory that it may use.

    Raises:
        ConfigurationError: there is no such device.
    """
    lanes = lanes_of(models)
    hosts = {spec.serving.alias: spec.serving for spec in models.specs}
    if all(spec.engine == "simulated" for spec in hosts.values()):
        # They run nowhere: what they state of a device counts.
        stated = max(whole_number(spec.options.get("memory_bytes")) for spec in hosts.values())
        memory = MemoryLedger(settings.memory.limit_bytes or stated or None, lanes)
        return Place(memory=memory, footprints=Footprints(), device=settings.device)
    if settings.device == "mps":
        return Place(memory=MemoryLedger(None, lanes), footprints=Footprints(), device="mps")
    device = find_device(settings.device)
    budget = DeviceBudget(device, settings.memory)
    bytes_now = budget.read()
    if bytes_now is not None:
        logger.info("%s: %.1f GiB of memory for models and jobs", device.name, bytes_now / 2**30)
    return Place(
        memory=MemoryLedger(bytes_now, lanes),
        footprints=Footprints(),
        device=device.name,
        visible=device.visible,
        budget=budget,
        start_up=partial(start_up, device, timeout_s=_START_UP_S),
    )
