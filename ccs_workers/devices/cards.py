"""The GPUs that NVML lists, with their MIG instances, in PCI order."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccs_workers.devices.nvml import NvmlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_workers.devices.nvml import Nvml

__all__ = ["Card", "list_cards"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU."""

    uuid: str
    #: Its product name; empty if unknown.
    model: str = ""
    #: In MIG mode it is no device itself; its instances are.
    mig: bool = False
    instances: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs that an engine can be given."""
        return self.instances if self.mig else (self.uuid,)


def list_cards(nvml: Nvml) -> tuple[Card, ...]:
    """Every GPU that can be used; one that is lost or not permitted isn't, and is logged.

    Raises:
        NvmlError: NVML doesn't answer, or not for a single GPU.
    """
    refusals: list[NvmlError] = []
    cards = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        try:
            cards.append(_card(nvml, index))
        except NvmlError as error:
            logger.warning("GPU %d is left out: %s", index, error)
            refusals.append(error)
    if refusals and not cards:
        raise refusals[0]
    return tuple(cards)


def _card(nvml: Nvml, index: int) -> Card:
    handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
    uuid = nvml.call("nvmlDeviceGetUUID", handle)
    try:
        model = nvml.call("nvmlDeviceGetName", handle)
    except NvmlError:
        model = ""
    mig = _in_mig_mode(nvml, handle)
    instances = tuple(_instances(nvml, handle, uuid)) if mig else ()
    return Card(uuid=uuid, model=model, mig=mig, instances=instances)


def _in_mig_mode(nvml: Nvml, handle: Any) -> bool:
    try:
        current, _pending = nvml.call("nvmlDeviceGetMigMode", handle)
    except NvmlError:
        # Most GPUs know no MIG and refuse the question.
        return False
    return bool(current)


def _instances(nvml: Nvml, handle: Any, uuid: str) -> Iterator[str]:
    try:
        count = nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle)
    except NvmlError as error:
        logger.warning("the MIG instances of %s are unknown: %s", uuid, error)
        return
    for index in range(count):
        try:
            yield nvml.call(
                "nvmlDeviceGetUUID", nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            )
        except NvmlError as error:
            # The places of instances that were never made are empty, and that is no fault.
            logger.debug("%s has no MIG instance %d: %s", uuid, index, error)
