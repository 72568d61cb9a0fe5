"""Measures drift and leaks: the same jobs alone, crowded, cut off and killed, on the engine processes of workers."""

from ccs_workers.verify.records import (
    Finding,
    FindingKind,
    ModelReport,
    VerifyOptions,
    VerifyReport,
    WayReport,
)
from ccs_workers.verify.run import verify

__all__ = [
    "Finding",
    "FindingKind",
    "ModelReport",
    "VerifyOptions",
    "VerifyReport",
    "WayReport",
    "verify",
]
