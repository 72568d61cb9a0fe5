"""From a wish (``auto``, ``cpu``, ``cuda:1``, ``GPU-…``) to one device, within what CUDA may see."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import ConfigurationError
from ccs_workers.devices.cards import list_cards
from ccs_workers.devices.cpu import cpu_device
from ccs_workers.devices.cuda import CudaDevice, UnmeasuredDevice
from ccs_workers.devices.nvml import NVML, Nvml, NvmlError
from ccs_workers.devices.visible import entries, names_by_index, visible_devices
from ccs_workers.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_workers.devices.cards import Card
    from ccs_workers.devices.device import Device

__all__ = ["find_device"]

logger = logging.getLogger(__name__)

_LISTED: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_WISHES: Final = "auto, cpu, cuda, cuda:N, GPU-<uuid> or MIG-<uuid>"
#: One of these is there wherever CUDA can work: Linux, WSL, Jetson.
_DRIVER_FILES: Final = ("dev/nvidiactl", "dev/dxg", "dev/nvmap")


def find_device(
    wish: str, environ: Mapping[str, str] | None = None, *, root: Path = Path("/"), nvml: Nvml = NVML
) -> Device:
    """Find the device that is meant.

    Args:
        wish: ``auto`` (the CUDA device with the most free memory; without any, the CPU), ``cpu``, ``cuda`` (as
            ``auto``, but never the CPU), ``cuda:N`` as CUDA counts in this environment, or the UUID, or a beginning
            of it that only one device has, of a GPU or a MIG instance.
        environ: where ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` are looked up; ours if not given.
        root: where ``proc``, ``dev`` and the cgroups are found.
        nvml: the library that knows the GPUs.

    Raises:
        ConfigurationError: there is no such device, or it is hidden; the message says what to do.
    """
    _check(wish)
    if wish == "cpu":
        return cpu_device(root)
    environ = child_environment() if environ is None else environ
    try:
        cards = list_cards(nvml)
    except NvmlError as error:
        return _without_nvml(wish, environ, root, str(error))
    found = [
        CudaDevice(uuid=uuid, nvml=nvml, root=root) for uuid in visible_devices(cards, environ.get(_LISTED))
    ]
    if wish == "auto" and not found:
        logger.info("running on the CPU: %s", _none_visible(cards, environ))
        return cpu_device(root)
    if not found:
        raise ConfigurationError(
            f"no device for {wish!r}: {_none_visible(cards, environ)}; --device cpu needs none"
        )
    if wish in {"auto", "cuda"}:
        return _freest(found)
    if wish.startswith("cuda:"):
        return _by_index(wish, found, cards, environ)
    return _by_uuid(wish, found, cards, environ)


def _check(wish: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda|cuda:\d{1,4}|(GPU|MIG)-[\w/-]+", wish, re.ASCII):
        raise ConfigurationError(f"device must be {_WISHES}, not {wish!r}")


def _none_visible(cards: Sequence[Card], environ: Mapping[str, str]) -> str:
    if not cards:
        return "NVML lists no GPU"
    if environ.get(_LISTED) is not None:
        return f"{_LISTED}={environ[_LISTED]!r} shows none of {len(cards)} GPUs"
    return "all GPUs are in MIG mode and none has an instance (nvidia-smi mig -cgi … -C makes one)"


def _freest(found: Sequence[CudaDevice]) -> CudaDevice:
    free = [device.read().free_bytes for device in found]
    # Unknown counts as less than nothing; among equals the first.
    best = max(range(len(found)), key=lambda index: -1 if free[index] is None else free[index] or 0)
    room = "unknown" if free[best] is None else f"{free[best]} bytes"
    logger.info("running on %s, free memory %s, of %d visible", found[best].uuid, room, len(found))
    return found[best]


def _by_index(
    wish: str, found: Sequence[CudaDevice], cards: Sequence[Card], environ: Mapping[str, str]
) -> CudaDevice:
    index = int(wish.removeprefix("cuda:"))
    if index >= len(found):
        listed = f" ({_LISTED}={environ[_LISTED]!r})" if _LISTED in environ else ""
        raise ConfigurationError(f"there is no {wish}: CUDA sees cuda:0 to cuda:{len(found) - 1}{listed}")
    mixed = len({card.model for card in cards}) > 1
    if mixed and names_by_index(environ.get(_LISTED)) and environ.get(_ORDER) != "PCI_BUS_ID":
        logger.warning(
            "CUDA counts different GPUs from the fastest on, we by PCI bus: %s is %s; set %s=PCI_BUS_ID, or name "
            "it by its UUID",
            wish,
            found[index].uuid,
            _ORDER,
        )
    return found[index]


def _by_uuid(
    wish: str, found: Sequence[CudaDevice], cards: Sequence[Card], environ: Mapping[str, str]
) -> CudaDevice:
    exact = [device for device in found if device.uuid == wish]
    matching = exact or [device for device in found if device.uuid.startswith(wish)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigurationError(f"{wish} begins the UUID of {len(matching)} devices; write more of it")
    divided = next((card for card in cards if card.mig and card.uuid.startswith(wish)), None)
    if divided is not None:
        names = ", ".join(divided.instances) or "none yet"
        raise ConfigurationError(f"{divided.uuid} is in MIG mode; name one of its instances: {names}")
    hidden = any(uuid.startswith(wish) for card in cards for uuid in card.devices)
    if hidden:
        raise ConfigurationError(f"{wish} is hidden by {_LISTED}={environ.get(_LISTED)!r}; add it there")
    visible = ", ".join(device.uuid for device in found)
    raise ConfigurationError(f"there is no device {wish}; CUDA sees {visible}")


def _without_nvml(wish: str, environ: Mapping[str, str], root: Path, reason: str) -> Device:
    """CUDA works without NVML, so what was asked for by name is taken, its memory unknown."""
    if wish == "auto":
        logger.info("running on the CPU: %s", reason)
        return cpu_device(root)
    listed = environ.get(_LISTED)
    if not any((root / name).exists() for name in _DRIVER_FILES):
        raise ConfigurationError(
            f"no device for {wish!r}: {reason}, and no NVIDIA driver is loaded; try --device cpu"
        )
    index = int(wish.removeprefix("cuda:")) if wish.startswith("cuda:") else 0
    names = [str(index)] * (index + 1) if listed is None else entries(listed)
    if wish.startswith(("GPU-", "MIG-")):
        # Indices in the list may mean it or not; without NVML only CUDA can say.
        index, names = 0, [wish for name in names if name.isdecimal() or _same(name, wish)]
    if index >= len(names):
        raise ConfigurationError(
            f"there is no {wish} in {_LISTED}={listed!r}; add it there, or name another device"
        )
    visible = names[index]
    logger.warning("the memory of %s is unknown: %s", wish, reason)
    uuid = visible if visible.startswith(("GPU-", "MIG-")) else f"cuda-{socket.gethostname()}-{visible}"
    return UnmeasuredDevice(uuid=uuid, visible=visible, reason=reason)


def _same(name: str, other: str) -> bool:
    """Whether two beginnings of UUIDs can be of one device."""
    return name.startswith(other) or other.startswith(name)
