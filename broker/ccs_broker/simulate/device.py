"""A device that batches by iteration, as a pure state machine: the simulator and the simulated engine run it.

Nothing here knows a clock: ``step`` says how long the iteration takes, and whoever drives the device lets that
time pass, at once in the simulator and in real time in the engine.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_broker.simulate.model import Demand, DeviceModel

__all__ = ["Device", "Run", "Step"]

#: Share of an iteration's budgets that the oldest job of the floor takes first.
FLOOR_SHARE: Final = 0.1
#: Encoding left below this many seconds is rounding.
_ROUNDING_S: Final = 1e-12


@dataclass(slots=True, eq=False)
class Run:
    """One job on a device; made by :meth:`Device.add`, changed by the device alone."""

    key: str
    #: Work left until the first token.
    encode_s: float
    prefill_tokens: int
    #: Tokens it is to give in all, and those that it has given.
    new_tokens: int
    generated: int
    #: Order among the jobs that have no token yet; lower goes first.
    score: float
    #: Taken by the floor: a share of every iteration is its own.
    floor: bool
    order: int
    #: Seconds of the device that it has used: its own work, and its part of the base of the iterations it worked in.
    device_s: float = 0.0
    #: The same until the first token of this run; None before it.
    first_device_s: float | None = field(default=None)
    #: While it decodes: where the device's iterations and decoding time stood when it began.
    _began: tuple[int, float] = field(default=(0, 0.0))

    @property
    def rank(self) -> tuple[float, int]:
        """Its place among the jobs without a token."""
        return self.score, self.order


@dataclass(frozen=True, slots=True)
class Step:
    """What one iteration brought, or several alike."""

    seconds: float
    #: Runs that gave the first token of this run.
    first: tuple[Run, ...] = ()
    #: Runs that gave their last token; they are off the device.
    ended: tuple[Run, ...] = ()


class Device:
    """The runs of one device, and its iterations."""

    def __init__(self, model: DeviceModel) -> None:
        self.model = model
        self._starting: list[Run] = []
        self._decoding: dict[str, Run] = {}
        #: (iteration of the last token, order, run); a run taken off stays in it until its turn.
        self._ends: list[tuple[int, int, Run]] = []
        self._iteration = 0
        #: Seconds that a sequence has paid which decoded from the beginning on.
        self._decode_clock_s = 0.0
        self._orders = 0

    def __len__(self) -> int:
        return len(self._starting) + len(self._decoding)

    @property
    def starting(self) -> int:
        """Runs without a token."""
        return len(self._starting)

    def decoding(self) -> Iterator[Run]:
        """The runs that give a token in every iteration, in the order of their first; ``generated`` is current."""
        for run in self._decoding.values():
            self._settle(run)
            yield run

    def add(
        self, key: str, demand: Demand, *, score: float = 0.0, floor: bool = False, generated: int = 0
    ) -> Run:
        """Put a job on the device; the next iteration is the first that knows it.

        Args:
            key: the job's name, once only on this device.
            demand: what it asks of the device.
            score: place among those without a token, lower first; then first come, first served.
            floor: whether a share of every iteration is its own.
            generated: tokens it has from an earlier attempt; they are prefilled behind its context.
        """
        self._orders += 1
        run = Run(
            key=key,
            encode_s=demand.encode_s,
            prefill_tokens=demand.context_tokens + generated,
            new_tokens=demand.new_tokens,
            generated=generated,
            score=score,
            floor=floor,
            order=self._orders,
        )
        insort(self._starting, run, key=lambda other: other.rank)
        return run

    def remove(self, run: Run) -> None:
        """Take a job off between two iterations; ``generated`` and ``device_s`` say what it got."""
        if self._decoding.pop(run.key, None):
            self._settle(run)
        elif run in self._starting:
            self._starting.remove(run)

    def step(self) -> Step:
        """Work through one iteration."""
        model = self.model
        self._iteration += 1
        decoders = len(self._decoding)
        worked, work_s, through = self._start_some()
        share_s = model.iteration_base_s / max(1, decoders + len(worked))
        self._decode_clock_s += model.decode_s_per_sequence + share_s
        for run in worked:
            run.device_s += share_s
        for run in through:
            self._starting.remove(run)
            self._begin_decoding(run)
        seconds = model.iteration_base_s + decoders * model.decode_s_per_sequence + work_s
        return Step(seconds, tuple(through), self._take_ended())

    def stretch(self) -> int:
        """How many iterations from now on differ in nothing: only decoding, until the first run ends; 0 for none."""
        self._drop_stale()
        return 0 if self._starting or not self._ends else self._ends[0][0] - self._iteration

    def stretch_s(self) -> float:
        """Seconds of each iteration of a stretch."""
        return self.model.iteration_base_s + len(self._decoding) * self.model.decode_s_per_sequence

    def skip(self, iterations: int) -> Step:
        """Work through so many iterations of a stretch at once."""
        seconds = iterations * self.stretch_s()
        self._iteration += iterations
        self._decode_clock_s += iterations * self.stretch_s() / max(1, len(self._decoding))
        return Step(seconds, (), self._take_ended())

    def _start_some(self) -> tuple[list[Run], float, list[Run]]:
        """Spend an iteration's budgets: the runs worked on, the seconds of work, the runs that got their token."""
        model = self.model
        budget = _Budget(model.max_encode_s_per_iteration, model.max_prefill_tokens_per_iteration)
        worked: dict[int, Run] = {}
        work_s = 0.0

        def serve(run: Run, encode_s: float, tokens: int) -> None:
            nonlocal work_s
            encode_s, tokens = budget.spend(run, encode_s, tokens)
            spent_s = encode_s + tokens * model.prefill_s_per_token
            if spent_s or not (run.encode_s or run.prefill_tokens):
                worked[run.order] = run
                run.device_s += spent_s
                work_s += spent_s

        for run in self._starting:
            if run.floor:
                serve(run, budget.encode_s * FLOOR_SHARE, int(budget.tokens * FLOOR_SHARE))
                break
        for run in self._starting:
            serve(run, budget.encode_s, budget.tokens)
            if budget.encode_s <= _ROUNDING_S and budget.tokens <= 0:
                break
        through = [run for run in self._starting if not run.encode_s and not run.prefill_tokens]
        return list(worked.values()), work_s, through

    def _begin_decoding(self, run: Run) -> None:
        run.first_device_s = run.device_s
        run.generated += 1
        run._began = (self._iteration, self._decode_clock_s)
        self._decoding[run.key] = run
        heappush(self._ends, (self._iteration + run.new_tokens - run.generated, run.order, run))

    def _settle(self, run: Run) -> None:
        """Credit a decoding run with the tokens and the device time since the last look."""
        iteration, clock_s = run._began
        run.generated += self._iteration - iteration
        run.device_s += self._decode_clock_s - clock_s
        run._began = (self._iteration, self._decode_clock_s)

    def _take_ended(self) -> tuple[Run, ...]:
        ended = []
        self._drop_stale()
        while self._ends and self._ends[0][0] <= self._iteration:
            run = heappop(self._ends)[2]
            self.remove(run)
            ended.append(run)
            self._drop_stale()
        return tuple(ended)

    def _drop_stale(self) -> None:
        while self._ends and self._decoding.get(self._ends[0][2].key) is not self._ends[0][2]:
            heappop(self._ends)


@dataclass(slots=True)
class _Budget:
    """What is left of one iteration's encoding and prefill."""

    encode_s: float
    tokens: int

    def spend(self, run: Run, most_encode_s: float, most_tokens: int) -> tuple[float, int]:
        """Work on a run within these bounds: seconds encoded, tokens prefilled."""
        encode_s = min(run.encode_s, most_encode_s)
        run.encode_s -= encode_s
        if run.encode_s < _ROUNDING_S:
            run.encode_s = 0.0
        tokens = 0 if run.encode_s else min(run.prefill_tokens, most_tokens)
        run.prefill_tokens -= tokens
        self.encode_s -= encode_s
        self.tokens -= tokens
        return encode_s, tokens
