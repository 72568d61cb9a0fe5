"""The ledger: jobs in Redis, changed only by scripts; pure calls once, run by sync and async callers."""

from ccs_broker.ledger.calls import Call, LedgerCalls
from ccs_broker.ledger.records import (
    Append,
    Blocked,
    Claim,
    ClaimWish,
    Ending,
    Entry,
    Need,
    NoClaim,
    NotClaimed,
    Pool,
    Published,
    PublishStatus,
    Room,
    Sizes,
    SweepReport,
)
from ccs_broker.ledger.store import Ledger

__all__ = [
    "Append",
    "Blocked",
    "Call",
    "Claim",
    "ClaimWish",
    "Ending",
    "Entry",
    "Ledger",
    "LedgerCalls",
    "Need",
    "NoClaim",
    "NotClaimed",
    "Pool",
    "PublishStatus",
    "Published",
    "Room",
    "Sizes",
    "SweepReport",
]
