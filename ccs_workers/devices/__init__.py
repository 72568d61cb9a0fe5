"""The devices that engines run on: which one a worker means, what its memory holds, and whose turn it is to load."""

from ccs_workers.devices.choice import find_device
from ccs_workers.devices.device import Device, Reading
from ccs_workers.devices.turns import start_up

__all__ = ["Device", "Reading", "find_device", "start_up"]
