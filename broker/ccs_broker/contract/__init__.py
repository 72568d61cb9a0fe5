"""The contract: what producers, the ledger and workers must agree on, and nothing that does I/O."""

from ccs_broker.contract.event import DELTA, PROGRESS, TERMINAL_KINDS, Event, EventKind
from ccs_broker.contract.job import Job, is_job_id
from ccs_broker.contract.limits import Limits
from ccs_broker.contract.outcome import ErrorInfo, Outcome, OutcomeState, Timings, Usage
from ccs_broker.contract.parts import AudioPart, ImagePart, MediaRef, Part, TextPart
from ccs_broker.contract.sampling import Sampling
from ccs_broker.contract.words import WIRE_VERSION, Modality, Overload, QosClass

__all__ = [
    "DELTA",
    "PROGRESS",
    "TERMINAL_KINDS",
    "WIRE_VERSION",
    "AudioPart",
    "ErrorInfo",
    "Event",
    "EventKind",
    "ImagePart",
    "Job",
    "Limits",
    "MediaRef",
    "Modality",
    "Outcome",
    "OutcomeState",
    "Overload",
    "Part",
    "QosClass",
    "Sampling",
    "TextPart",
    "Timings",
    "Usage",
    "is_job_id",
]
