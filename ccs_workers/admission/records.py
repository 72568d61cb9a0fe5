"""Records of the memory ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Id of a job and number of its attempt: one claim.
Key = tuple[str, int]
#: A need of nothing.
NOTHING: Final = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a loaded engine holds, whatever its jobs do."""

    #: Process, libraries, weights, the peak of a step, and the pool.
    fixed_bytes: int
    #: Part of it that is divided among its jobs; 0 where their memory comes on top.
    pool_bytes: int = 0


class Borrower(Protocol):
    """A running job whose engine has told what it really needs."""

    def granted(self, memory_bytes: int) -> None:
        """It may use so much from now on."""

    def refused(self, need_bytes: int, most_bytes: int) -> None:
        """It can never have so much here: all there is for jobs is ``most_bytes``."""

    def hand_back(self) -> None:
        """Others wait for memory as well, and nobody can go on: let this one be claimed again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHolding:
    """What one engine and its jobs hold, in bytes."""

    alias: str
    fixed_bytes: int
    pool_bytes: int
    #: Reserved by its jobs, in its pool or on top.
    jobs_bytes: int
    #: What each job may use, by job id; the part that only a step takes is in ``jobs_bytes`` once.
    jobs: Mapping[str, int]
    #: The last peak that its process told, and what it and its jobs held at most meanwhile; None before the first.
    peak_bytes: int | None = None
    held_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Everything that is held of a device; None where the device's memory is unknown."""

    budget_bytes: int | None
    free_bytes: int | None
    engines: tuple[EngineHolding, ...]
