"""What the memory ledger notes of one engine and of one job."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccs_workers.admission.records import Borrower, Footprint

__all__ = ["EngineAccount", "Loan", "bytes_of"]

#: Of what an engine once used beyond what it was said to, this part is still expected at its next report.
_KEPT_PER_REPORT: Final = 0.9


@dataclass(slots=True)
class EngineAccount:
    """An engine's footprint, as told and as corrected by what its process is measured to use."""

    footprint: Footprint
    #: Bytes of its jobs, as coefficients; None until it is loaded and while it takes no new ones.
    need: tuple[float, float, float, float, float] | None = None
    #: Measured beyond footprint and jobs; rises at once, falls slowly.
    beyond_bytes: int = 0
    #: The peak that its process told last, and what was held for it meanwhile.
    peak_bytes: int | None = None
    held_bytes: int | None = None
    #: What its jobs held at most, since its process last told its peak and in the time before that.
    _most: deque[int] = field(default_factory=lambda: deque([0, 0], maxlen=2))

    @property
    def fixed_bytes(self) -> int:
        """What it holds whatever its jobs do."""
        return self.footprint.fixed_bytes + self.beyond_bytes

    def note(self, jobs_bytes: int) -> None:
        """Its jobs hold so much now."""
        self._most[-1] = max(self._most[-1], jobs_bytes)

    def observe(self, peak_bytes: int, jobs_bytes: int) -> None:
        """Its process told the peak since it last did; its jobs hold ``jobs_bytes`` now.

        A job ends here a moment before or after its memory is free there, so what was held in the time before counts
        too: otherwise the last breath of one that ended would be taken for memory that nobody reserved.
        """
        self.note(jobs_bytes)
        most = 0 if self.footprint.pool_bytes else max(self._most)
        self.peak_bytes, self.held_bytes = peak_bytes, self.fixed_bytes + most
        beyond = peak_bytes - self.footprint.fixed_bytes - most
        self.beyond_bytes = max(0, beyond, int(_KEPT_PER_REPORT * self.beyond_bytes))
        self._most.append(jobs_bytes)


@dataclass(slots=True)
class Loan:
    """What one job holds."""

    queue: str
    alias: str
    reserved_bytes: int
    #: Of that, what only one of its steps takes. An engine takes one step at a time, so its jobs' largest counts, once.
    step_bytes: int = 0
    #: What it waits for, if that is more, and the part of a step in it.
    wanted_bytes: int = 0
    wanted_step_bytes: int = 0
    borrower: Borrower | None = field(default=None, repr=False)

    @property
    def wanted(self) -> Loan:
        """Itself once it has what it waits for."""
        return replace(self, reserved_bytes=self.wanted_bytes, step_bytes=self.wanted_step_bytes)


def bytes_of(loans: Iterable[Loan]) -> int:
    """What jobs hold together; ``loans`` are those of one engine."""
    lasting = step = 0
    for loan in loans:
        lasting += loan.reserved_bytes - loan.step_bytes
        step = max(step, loan.step_bytes)
    return lasting + step
