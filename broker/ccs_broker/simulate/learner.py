"""What a simulated fleet learns of service times, through the same scripts and sums as a real worker's learner."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.estimate import STATISTICS_LEN, Statistics, past_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_broker.estimate import Coefficients
    from ccs_broker.ledger import Call, LedgerCalls, Sizes

__all__ = ["Learner"]

#: Predictions of each queue over which the error is stated.
_LATEST: Final = 200
_NAMES: Final = tuple(f"{kind}{place}" for kind in ("f", "c") for place in range(STATISTICS_LEN))


@dataclass(slots=True)
class _Kind:
    """One of the two times that are learnt of a queue's jobs: until the first output, and of the whole job."""

    fresh: Statistics = field(default_factory=Statistics)
    ratios: list[float] = field(default_factory=list)
    known: Coefficients | None = None
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))

    def add(self, sizes: tuple[int, ...], time_us: float) -> None:
        expected_us = None if self.known is None else max(1.0, self.known.predict(sizes))
        self.fresh = self.fresh.add(sizes, time_us, expected_us)
        if expected_us is not None:
            self.ratios.append(time_us / expected_us)
            self.errors.append(abs(expected_us - time_us) / max(1.0, time_us))


class Learner:
    """One for the whole fleet, for the order in which workers add their sums makes no difference."""

    def __init__(self, calls: LedgerCalls, ask: Callable[[Call], Any]) -> None:
        self._calls = calls
        self._ask = ask
        self._queues: defaultdict[str, tuple[_Kind, _Kind]] = defaultdict(lambda: (_Kind(), _Kind()))

    def add(self, queue: str, sizes: Sizes, *, first_s: float, device_s: float) -> None:
        """A job of these sizes has ended: seconds of device time until its first output, and in all."""
        first, cost = self._queues[queue]
        first.add(sizes.values(), first_s * 1e6)
        cost.add(sizes.values(), device_s * 1e6)

    def push(self) -> None:
        """Merge what is new into the ledger's sums, and tell the ledger what they come to."""
        for queue, kinds in self._queues.items():
            if kinds[1].fresh.count:
                self._exchange(queue, kinds)

    def error(self) -> float | None:
        """Median relative error of the latest predictions of whole jobs; None where there are none."""
        errors = [error for _, cost in self._queues.values() for error in cost.errors]
        return median(errors) if errors else None

    def _exchange(self, queue: str, kinds: tuple[_Kind, _Kind]) -> None:
        keep = min(past_share(kind.ratios) for kind in kinds)
        fresh = [value for kind in kinds for value in kind.fresh.sums]
        for kind in kinds:
            kind.fresh, kind.ratios = Statistics(), []
        call = self._calls.learn(queue, "", keep, dict(zip(_NAMES, fresh, strict=True)))
        merged = self._calls.read_learn(self._ask(call))
        sums = tuple(merged[name] for name in _NAMES)
        for kind, own in zip(kinds, (sums[:STATISTICS_LEN], sums[STATISTICS_LEN:]), strict=True):
            kind.known = Statistics(own).solve()
        first, cost = (kind.known for kind in kinds)
        if first is not None and cost is not None:
            self._ask(self._calls.teach(queue, "", first.values, cost.values))
