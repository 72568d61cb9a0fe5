"""The closed sets of words on the wire: modality, QoS class, and what becomes of a job that would be late."""

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


class Overload(StrEnum):
    """What is to become of a job that can't be done in time."""

    #: It runs on leftover capacity, and an event says so.
    RELEGATE = "relegate"
    #: It is refused at submission, with the predicted time.
    REFUSE = "refuse"
    #: It keeps its place.
    ACCEPT = "accept"
