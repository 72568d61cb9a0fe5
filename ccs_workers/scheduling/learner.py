"""The learner: what jobs took goes into the fleet's statistics, and comes back as what jobs are expected to take.

Samples gather here by lane (queue, and model if the job named one) and go out together. Other workers' samples
join them in the server; whoever adds to a lane's statistics solves them anew, so a fleet learns as one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from ccs_broker.estimate import STATISTICS_LEN, Statistics, past_share
from ccs_broker.ledger.faults import fault_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.estimate import Coefficients
    from ccs_broker.ledger import Ledger, Sizes

__all__ = ["LEARN_EVERY_S", "Lane", "LaneErrors", "Learner"]

logger = logging.getLogger(__name__)

#: Seconds between two rounds with the server.
LEARN_EVERY_S: Final = 1.0
#: Predictions of each lane whose error is told.
_REMEMBERED: Final = 200
#: What the server calls the numbers of the statistics, those of the first output before those of the whole job.
_NAMES: Final = tuple(f"{kind}{place}" for kind in "fc" for place in range(STATISTICS_LEN))

#: A queue, and the model that a job named or "".
Lane = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneErrors:
    """How far predictions were off lately, as a share of the time that was really taken: medians."""

    jobs: int
    first: float | None
    cost: float


@dataclass(slots=True)
class _Kind:
    """One of the two times that are learnt of a lane: until the first output, and of the whole job."""

    fresh: Statistics = field(default_factory=Statistics)
    #: Times of the fresh samples as multiples of what was expected.
    ratios: list[float] = field(default_factory=list)
    known: Coefficients | None = None
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def add(self, sizes: Sequence[float], time_us: float) -> None:
        expected_us = None if self.known is None else max(1.0, self.known.predict(sizes))
        self.fresh = self.fresh.add(sizes, time_us, expected_us)
        if expected_us is not None:
            self.ratios.append(time_us / expected_us)
            self.errors.append(abs(expected_us - time_us) / max(1.0, time_us))

    def take(self) -> tuple[Statistics, list[float]]:
        taken = self.fresh, self.ratios
        self.fresh, self.ratios = Statistics(), []
        return taken

    def put_back(self, fresh: Statistics, ratios: list[float]) -> None:
        self.fresh = self.fresh.merge(fresh)
        self.ratios = ratios + self.ratios


@dataclass(slots=True)
class _LaneState:
    first: _Kind = field(default_factory=_Kind)
    cost: _Kind = field(default_factory=_Kind)
    jobs: int = 0


class Learner:
    """One per worker. Any thread may add; one thread pushes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._lanes: dict[Lane, _LaneState] = {}

    def add(self, lane: Lane, sizes: Sizes, *, first_s: float | None, device_s: float) -> None:
        """A job of these sizes has ended well.

        Args:
            lane: its queue, and the model it named.
            sizes: what estimates go by.
            first_s: seconds of device time until its first output, if it had one.
            device_s: seconds of device time it took.
        """
        values = sizes.values()
        with self._lock:
            state = self._lanes.setdefault(lane, _LaneState())
            state.jobs += 1
            state.cost.add(values, device_s * 1e6)
            if first_s is not None:
                state.first.add(values, first_s * 1e6)

    def push(self) -> None:
        """Exchange what is new with the server. Its errors pass through; what didn't get there stays to be told."""
        with self._lock:
            lanes = [lane for lane, state in self._lanes.items() if state.cost.fresh.count]
        for lane in lanes:
            self._exchange(lane)

    def close(self) -> None:
        """Push once more, if the server is there."""
        try:
            self.push()
        except (RedisError, OSError) as error:
            logger.info("what the last jobs took wasn't told (%s)", fault_word(error))

    def errors(self) -> dict[Lane, LaneErrors]:
        """How well each lane's times were predicted, of lanes where any was."""
        with self._lock:
            return {
                lane: LaneErrors(
                    jobs=state.jobs,
                    first=median(state.first.errors) if state.first.errors else None,
                    cost=median(state.cost.errors),
                )
                for lane, state in self._lanes.items()
                if state.cost.errors
            }

    def _exchange(self, lane: Lane) -> None:
        state = self._lanes[lane]
        with self._lock:
            taken = [kind.take() for kind in (state.first, state.cost)]
        # Both kinds fade alike: the device or the model is what has changed.
        share = min(past_share(ratios) for _, ratios in taken)
        fresh = [value for statistics, _ in taken for value in statistics.sums]
        try:
            merged = self._ledger.learn(*lane, share, dict(zip(_NAMES, fresh, strict=True)))
        except (RedisError, OSError):
            with self._lock:
                for kind, (statistics, ratios) in zip((state.first, state.cost), taken, strict=True):
                    kind.put_back(statistics, ratios)
            raise
        sums = [merged[name] for name in _NAMES]
        first = Statistics(tuple(sums[:STATISTICS_LEN])).solve()
        cost = Statistics(tuple(sums[STATISTICS_LEN:])).solve()
        with self._lock:
            state.first.known, state.cost.known = first, cost
        if first is not None and cost is not None:
            self._ledger.teach(*lane, first.values, cost.values)
