"""Runs all ways of all models and gathers the report."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Final

from ccs_workers.executor.handle import EngineHandle
from ccs_workers.verify.bench import Bench
from ccs_workers.verify.canaries import Aviary, Sayings
from ccs_workers.verify.checks import JobMaker
from ccs_workers.verify.judge import Judge
from ccs_workers.verify.records import HALF_PRECISION, ModelReport, VerifyOptions, VerifyReport
from ccs_workers.verify.ways import ModelRun, run_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.verify.bench import Starter
    from ccs_workers.verify.judge import TieRule
    from ccs_workers.verify.records import Tell

__all__ = ["verify"]

_TEXT_ENGINE: Final = "text"


def verify(
    specs: Sequence[ModelSpec],
    options: VerifyOptions | None = None,
    tell: Tell = lambda _alias, _way, _done, _total: None,
    *,
    start: Starter = EngineHandle,
) -> VerifyReport:
    """Run every model's jobs in every way and compare.

    Raises:
        ConfigurationError: a model can't be loaded.
        EngineError: an engine died unasked, or fell silent.
    """
    options = options or VerifyOptions()
    began = time.monotonic()
    aviary, sayings = Aviary(Random(f"{options.seed}/canaries")), Sayings()
    with Bench(specs, patience_s=options.patience_s, start=start) as bench:
        runs = [
            ModelRun(bench, maker, judge, options, tell)
            for spec in specs
            for maker, judge in [_parts(spec, bench, options, (aviary, sayings))]
        ]
        for run in runs:
            run.run_alone()
        for run in runs:
            run.run_crowded()
            run.run_resumed()
            run.run_killed()
        if len(runs) > 1:
            run_together(bench, runs, tell)
        models = tuple(_report(spec, bench, run, options) for spec, run in zip(specs, runs, strict=True))
    return VerifyReport(
        seed=options.seed,
        neighbours=options.neighbours,
        models=models,
        seconds=round(time.monotonic() - began, 3),
    )


def _parts(
    spec: ModelSpec, bench: Bench, options: VerifyOptions, canaries: tuple[Aviary, Sayings]
) -> tuple[JobMaker, Judge]:
    info = bench.info(spec.alias)
    random = Random(f"{options.seed}/{spec.alias}")
    ties = _tie_rule(spec) if info.dtype not in HALF_PRECISION else None
    return JobMaker(spec, info, random, canaries[0]), Judge(spec, *canaries, ties)


def _tie_rule(spec: ModelSpec) -> TieRule | None:
    if spec.serving.engine != _TEXT_ENGINE:
        return None
    from ccs_workers.verify.ties import TieJudge

    return TieJudge(spec.serving)


def _report(spec: ModelSpec, bench: Bench, run: ModelRun, options: VerifyOptions) -> ModelReport:
    info = bench.info(spec.alias)
    return ModelReport(
        alias=spec.alias,
        modality=spec.modality.value,
        engine=spec.serving.engine,
        device=info.device,
        dtype=info.dtype,
        jobs=options.jobs,
        canaries=run.judge.canaries,
        read_back=run.judge.read_back,
        ways=tuple(run.judge.reports),
        findings=tuple(run.judge.findings),
    )
