"""Holds the runs of one model against those of its jobs alone, and every output against everybody's canaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ccs_broker.contract import Modality
from ccs_workers.engines.protocol import Done, Failed
from ccs_workers.verify.compare import audit, difference, places_of
from ccs_workers.verify.records import Finding, FindingKind, Way, WayReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccs_broker.contract import Sampling
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.verify.canaries import Aviary, Sayings
    from ccs_workers.verify.compare import Difference
    from ccs_workers.verify.trail import Trail

__all__ = ["Judge", "TieRule"]


class TieRule(Protocol):
    """What is asked of a ``TieJudge``."""

    def is_tie(
        self, prompt: str, sampling: Sampling, seed: int, answers: tuple[Sequence[int], Sequence[int]]
    ) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one way gave for one model."""

    way: Way
    trails: Sequence[Trail]
    neighbours: Sequence[Trail] = ()
    seconds: float = 0.0


class Judge:
    """One per model; remembers the runs alone."""

    def __init__(self, spec: ModelSpec, aviary: Aviary, sayings: Sayings, ties: TieRule | None) -> None:
        """``ties`` is None where a continued job has no excuse for another answer."""
        self._spec = spec
        self._aviary = aviary
        self._sayings = sayings
        self._ties = ties
        self._alone: dict[str, Trail] = {}
        self.findings: list[Finding] = []
        self.reports: list[WayReport] = []

    @property
    def alias(self) -> str:
        return self._spec.alias

    @property
    def alone(self) -> dict[str, Trail]:
        """The run of each job alone, by the job's name."""
        return self._alone

    @property
    def canaries(self) -> int:
        return sum(bool(trail.check.canary) for trail in self._alone.values() if not trail.check.must_fail)

    @property
    def read_back(self) -> int:
        """Jobs that gave their own canary back: as many could have given away another's."""
        return sum(
            self._aviary.holds_own(trail.check.owner, text)
            for trail in self._alone.values()
            for place, text in places_of(trail)
            if place == "text"
        )

    def take_alone(self, trails: Sequence[Trail]) -> None:
        """Remember what the others are compared with."""
        for trail in trails:
            self._alone[trail.check.name] = trail
            if self._spec.modality is Modality.AUDIO and isinstance(trail.end, Done):
                self._sayings.learn(trail.check.owner, trail.text)

    def judge(self, ran: Ran) -> None:
        """Find what is wrong with a way's runs, and count it."""
        found = [finding for trail in ran.trails for finding in self._compared(ran.way, trail)]
        for trail in (*ran.trails, *ran.neighbours):
            found += [
                self._finding(FindingKind.BROKEN, ran.way, trail, text)
                for text in self._wrong(ran.way, trail)
            ]
            found += self._leaks(ran.way, trail)
        self.findings += found
        kinds = [finding.kind for finding in found]
        self.reports.append(
            WayReport(
                way=ran.way,
                outputs=0 if ran.way is Way.ALONE else len(ran.trails),
                changed=kinds.count(FindingKind.CHANGED),
                ties=kinds.count(FindingKind.TIE),
                leaks=kinds.count(FindingKind.LEAK),
                broken=kinds.count(FindingKind.BROKEN),
                cuts=sum(trail.resumed for trail in ran.trails),
                seconds=round(ran.seconds, 3),
            )
        )

    def _finding(
        self, kind: FindingKind, way: Way, trail: Trail, detail: str, place: Difference | None = None
    ) -> Finding:
        return Finding(
            kind=kind,
            alias=trail.check.alias,
            way=way,
            job=trail.check.name,
            token=place.token if place else None,
            character=place.character if place else None,
            detail=detail,
        )

    def _compared(self, way: Way, trail: Trail) -> Iterator[Finding]:
        alone = self._alone[trail.check.name]
        differs = difference(alone, trail)
        if differs is None:
            return
        kind = FindingKind.TIE if self._is_tie(alone, trail, differs) else FindingKind.CHANGED
        yield self._finding(kind, way, trail, differs.detail, differs)

    def _is_tie(self, alone: Trail, trail: Trail, differs: Difference) -> bool:
        if self._ties is None or differs.token is None or not (trail.resumed or trail.continued):
            return False
        job = trail.check.job
        return self._ties.is_tie(job.prompt, job.sampling, job.seed, (alone.token_ids, trail.token_ids))

    def _wrong(self, way: Way, trail: Trail) -> list[str]:
        wrong = audit(trail)
        if trail.check.must_fail and not isinstance(trail.end, Failed):
            wrong.append("it was taken, though it goes on behind what was never said")
        compared = way is not Way.ALONE and trail.check.name in self._alone
        if isinstance(trail.end, Failed) and not (compared or trail.check.must_fail or trail.check.invalid):
            # One that fails alone already would otherwise pass as unchanged.
            wrong.append(f"it failed with {trail.end.code}: {trail.end.message}")
        return wrong

    def _leaks(self, way: Way, trail: Trail) -> Iterator[Finding]:
        owner = trail.check.owner
        for place, text in places_of(trail):
            for other, character in self._aviary.strangers(owner, text).items():
                yield Finding(
                    kind=FindingKind.LEAK,
                    alias=trail.check.alias,
                    way=way,
                    job=trail.check.name,
                    character=character,
                    detail=f"the canary of {other!r} is in its {place}",
                )
        if isinstance(trail.end, Failed) and self._aviary.holds_own(owner, trail.end.message):
            detail = "its own input is in its error message, which may be logged"
            yield self._finding(FindingKind.LEAK, way, trail, detail)
        for other in sorted(self._sayings.strangers(owner, trail.text)):
            detail = f"words that only {other!r} has are in its text"
            yield self._finding(FindingKind.LEAK, way, trail, detail)
