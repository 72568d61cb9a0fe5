"""The ways in which the jobs of one model are run, and what is cut off where."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Final

from ccs_workers.verify.judge import Ran
from ccs_workers.verify.records import Way
from ccs_workers.verify.trail import Trail, resume_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccs_workers.verify.bench import Bench
    from ccs_workers.verify.checks import JobMaker
    from ccs_workers.verify.judge import Judge
    from ccs_workers.verify.records import Check, Tell, VerifyOptions

__all__ = ["ModelRun", "run_together"]

#: How often a job is cut off at most.
_CUTS: Final = 3
#: Part of all outputs after which an engine is killed.
_KILL_BETWEEN: Final = (0.15, 0.5)


class ModelRun:
    """One model on its bench."""

    def __init__(
        self, bench: Bench, maker: JobMaker, judge: Judge, options: VerifyOptions, tell: Tell
    ) -> None:
        self.alias = judge.alias
        self.judge = judge
        self._bench = bench
        self._maker = maker
        self._options = options
        self._tell = tell
        self._checks = maker.jobs(options.jobs)

    def run_alone(self) -> None:
        """One after the other, twice: a model that isn't equal to itself can't be to anything else."""
        first = self._one_by_one(Way.ALONE)
        self.judge.take_alone(first.trails)
        self.judge.judge(first)
        self.judge.judge(self._one_by_one(Way.AGAIN))

    def run_crowded(self) -> None:
        """All at once among neighbours, in two orders, each with neighbours of its own."""
        for way in (Way.BATCH, Way.REORDERED):
            self._among_neighbours(way, [Trail(check) for check in self._checks])

    def run_resumed(self) -> None:
        """Cut off after some outputs and continued, several times, among neighbours."""
        random = self._random(Way.RESUMED)
        trails = [Trail(check, cuts=self._draw_cuts(random, check)) for check in self._checks]
        self._among_neighbours(Way.RESUMED, trails, lambda: self._behind_the_log(trails))

    def run_killed(self) -> None:
        """Continued on a new process after the engine was killed under all of them."""
        random = self._random(Way.KILLED)
        trails = [Trail(check) for check in self._checks]
        whole = sum(len(self.judge.alone[check.name].outputs) for check in self._checks)
        kill_at = max(1, round(whole * random.uniform(*_KILL_BETWEEN)))
        killed: list[int] = []

        def watch() -> None:
            if not killed and sum(len(trail.outputs) for trail in trails) >= kill_at:
                killed.append(kill_at)
                self._bench.kill(self.alias)

        def afterwards() -> list[Trail]:
            if any(trail.resumed for trail in trails):
                return []
            # They were all done before it came: what they had said at some place is continued on a new process.
            if not killed:
                self._bench.kill(self.alias)
            self._bench.restart(self.alias)
            cuts = {check.name: self._draw_cuts(random, check)[:1] for check in self._checks}
            return [self._continued(trail, cut) for trail in trails for cut in cuts[trail.check.name]]

        self._among_neighbours(Way.KILLED, trails, afterwards, watch)

    def trails_together(self) -> list[Trail]:
        """Runs for the way in which all models work at once."""
        return [Trail(check) for check in self._checks]

    def _one_by_one(self, way: Way) -> Ran:
        began = time.monotonic()
        trails = [Trail(check) for check in self._checks]
        for number, trail in enumerate(trails):
            self._tell(self.alias, way, number, len(trails))
            self._bench.drive([trail])
        self._tell(self.alias, way, len(trails), len(trails))
        return Ran(way=way, trails=trails, seconds=time.monotonic() - began)

    def _among_neighbours(
        self,
        way: Way,
        trails: list[Trail],
        afterwards: Callable[[], Sequence[Trail]] = lambda: (),
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        began = time.monotonic()
        neighbours = [Trail(check) for check in self._maker.neighbours(self._options.neighbours)]
        mixed = [*trails, *neighbours]
        self._random(way).shuffle(mixed)

        def look() -> None:
            watch()
            self._tell(self.alias, way, sum(trail.finished for trail in mixed), len(mixed))

        self._tell(self.alias, way, 0, len(mixed))
        self._bench.drive(mixed, look)
        more = list(afterwards())
        self._bench.drive(more)
        self._tell(self.alias, way, len(mixed), len(mixed))
        self.judge.judge(
            Ran(way=way, trails=[*trails, *more], neighbours=neighbours, seconds=time.monotonic() - began)
        )

    def _random(self, way: Way) -> Random:
        return Random(f"{self._options.seed}/{self.alias}/{way}")

    def _draw_cuts(self, random: Random, check: Check) -> list[int]:
        outputs = len(self.judge.alone[check.name].outputs)
        places = range(1, outputs + 1)
        return sorted(random.sample(places, min(_CUTS, outputs)))

    def _behind_the_log(self, trails: Sequence[Trail]) -> list[Trail]:
        """For cuts that came too late: go on behind what the log would have held there."""
        return [self._continued(trail, cut) for trail in trails for cut in trail.unused_cuts]

    def _continued(self, trail: Trail, cut: int) -> Trail:
        return Trail(trail.check, resume=resume_behind(self.judge.alone[trail.check.name].outputs[:cut]))


def run_together(bench: Bench, runs: Sequence[ModelRun], tell: Tell) -> None:
    """All jobs of all models at once."""
    began = time.monotonic()
    by_run = [(run, run.trails_together()) for run in runs]
    trails = [trail for _, own in by_run for trail in own]
    # Taken in turns, so that no engine has its jobs before another one begins.
    trails.sort(key=lambda trail: trail.check.name)
    bench.drive(trails, lambda: tell("", Way.TOGETHER, sum(trail.finished for trail in trails), len(trails)))
    for run, own in by_run:
        run.judge.judge(Ran(way=Way.TOGETHER, trails=own, seconds=time.monotonic() - began))
