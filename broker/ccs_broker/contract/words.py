"""The closed sets of words on the wire: modality and QoS class."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

#: Version of the wire; a reader refuses a higher one and accepts unknown fields of its own.
WIRE_VERSION: Final = 1


class Modality(StrEnum):
    """What a job is made of; each has its own queue."""

    TEXT = "text"
    VISION = "vision"
    AUDIO = "audio"
    FUSION = "fusion"


class QosClass(StrEnum):
    """How urgent a job is, most urgent first; ``standard`` is the default, in the middle."""

    REALTIME = "realtime"
    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"
