"""What a run of ``ccs verify`` is told, and what it reports: plain records, no work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import EngineJob

#: Kinds of numbers in which results aren't promised to be the same in another batch.
HALF_PRECISION: Final = frozenset({"bfloat16", "float16"})

#: ``tell(alias, way, done, total)``: how many jobs of a way have ended.
Tell = Callable[[str, str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How much is tried."""

    #: Jobs of each model whose outputs are compared.
    jobs: int = 16
    #: Jobs that run beside them in the mixed ways.
    neighbours: int = 16
    #: Decides all prompts, orders, cuts and kills.
    seed: int = 0
    #: Seconds without a sign of any running job, after which an engine is given up.
    patience_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One job of the set. ``job`` is whole but for its key, which each run gives it anew."""

    #: Says what is special about it, as in ``text 4: CJK``.
    name: str
    #: The model it is for.
    alias: str
    job: EngineJob
    #: A word that stands in this job's input alone; empty: it has none.
    canary: str = ""
    #: It is made to be refused; True: whatever engine takes it is wrong.
    must_fail: bool = False
    #: It is made to be refused by engines that look at their input.
    invalid: bool = False
    #: A neighbour that is cancelled for good after so many outputs.
    stop_after: int | None = None

    @property
    def owner(self) -> str:
        """Whose its canary is; unique over all models."""
        return f"{self.alias} {self.name}"


class Way(StrEnum):
    """How the jobs are run; the first one is what the others are compared with."""

    ALONE = "alone"
    AGAIN = "alone again"
    BATCH = "mixed batch"
    REORDERED = "another order"
    RESUMED = "cut and resumed"
    KILLED = "engine killed"
    TOGETHER = "all models at once"


class FindingKind(StrEnum):
    """What can be wrong with an output."""

    #: It differs from that of the same job alone.
    CHANGED = "changed"
    #: It differs from where two tokens were as good as each other, and the job was continued: allowed.
    TIE = "tie"
    #: A canary of another job is in it.
    LEAK = "leak"
    #: It isn't what the protocol or the contract allows, whatever the other ways gave.
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, and where it is."""

    kind: FindingKind
    alias: str
    way: Way
    job: str
    #: First token that differs, counted from 0.
    token: int | None = None
    #: First character that differs, or at which the canary begins, counted from 0.
    character: int | None = None
    detail: str

    @property
    def place(self) -> str:
        """Where it is, for a reader."""
        places = {"token": self.token, "character": self.character}
        return ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayReport:
    """One way of one model."""

    way: Way
    #: Outputs compared with those of the jobs alone; none in the first way.
    outputs: int
    changed: int
    ties: int
    leaks: int
    broken: int
    #: How often a job was cut off and went on.
    cuts: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """All ways of one model."""

    alias: str
    modality: str
    engine: str
    device: str
    dtype: str
    jobs: int
    #: Jobs whose input holds a canary, and those of them whose own output alone gave it back.
    canaries: int
    read_back: int
    ways: tuple[WayReport, ...]
    findings: tuple[Finding, ...]

    @property
    def promised(self) -> bool:
        """Whether the outputs of this model have to be the same in every way."""
        return self.dtype not in HALF_PRECISION

    @property
    def outputs(self) -> int:
        return sum(way.outputs for way in self.ways)

    @property
    def changed(self) -> int:
        return sum(way.changed for way in self.ways)

    @property
    def leaks(self) -> int:
        return sum(way.leaks for way in self.ways)

    @property
    def ok(self) -> bool:
        """Whether all is as promised."""
        broken = any(way.broken for way in self.ways)
        return not (broken or self.leaks or (self.promised and self.changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """All models."""

    seed: int
    neighbours: int
    models: tuple[ModelReport, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(model.ok for model in self.models)
