"""Everything about the broker that producers and workers must agree on, and the client for any service.

from ccs_broker import Client

job = Client("redis://127.0.0.1:6379/0").submit("text", prompt="…")
for event in job.stream(): ...
outcome = job.result()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ccs_broker.client import AsyncClient, AsyncJobHandle, Client, JobHandle, JobState, JobStatus
    from ccs_broker.contract import (
        Event,
        EventKind,
        Job,
        Limits,
        MediaRef,
        Modality,
        Outcome,
        OutcomeState,
        QosClass,
    )
    from ccs_broker.errors import CcsError

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "CcsError",
    "Client",
    "Event",
    "EventKind",
    "Job",
    "JobHandle",
    "JobState",
    "JobStatus",
    "Limits",
    "MediaRef",
    "Modality",
    "Outcome",
    "OutcomeState",
    "QosClass",
]

_CLIENT: Final = ("AsyncClient", "AsyncJobHandle", "Client", "JobHandle", "JobState", "JobStatus")
_HOMES: Final = dict.fromkeys(__all__, "ccs_broker.contract") | {
    **dict.fromkeys(_CLIENT, "ccs_broker.client"),
    "CcsError": "ccs_broker.errors",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for; a worker or a tool that needs one room does not pay for the client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
