"""The ledger: jobs in Redis, changed only by scripts; pure calls once, run by sync and async callers."""

from ccs_broker.ledger.calls import Call, LedgerCalls
from ccs_broker.ledger.records import (
    Append,
    Claim,
    ClaimWish,
    Ending,
    Entry,
    NoClaim,
    NotClaimed,
    Published,
    PublishStatus,
    SweepReport,
)
from ccs_broker.ledger.store import Ledger

__all__ = [
    "Append",
    "Call",
    "Claim",
    "ClaimWish",
    "Ending",
    "Entry",
    "Ledger",
    "LedgerCalls",
    "NoClaim",
    "NotClaimed",
    "PublishStatus",
    "Published",
    "SweepReport",
]
