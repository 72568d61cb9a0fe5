"""Cuts what an uninterrupted run emitted at every place, and compares what a continued run makes of the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ccs_workers.engines.protocol import Delta, Done, Progress, Resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccs_workers.engines.protocol import Engine, EngineJob, EngineOutput
    from tests.media_jobs import Outputs


def resume_of(outputs: Sequence[EngineOutput], *, more: str = "") -> Resume:
    """What these outputs leave in the log, and ``more`` text; progress goes through JSON on its way."""
    deltas = [output for output in outputs if isinstance(output, Delta)]
    return Resume(
        text="".join(delta.text for delta in deltas) + more,
        token_ids=tuple(one for delta in deltas for one in delta.token_ids),
        progress=tuple(
            json.loads(json.dumps(dict(output.data))) for output in outputs if isinstance(output, Progress)
        ),
    )


def check_every_cut(
    whole: Sequence[EngineOutput], job: EngineJob, run: Callable[[EngineJob], list[EngineOutput]]
):
    """Continue behind every prefix of a whole run's outputs: the rest must come, output for output."""
    assert isinstance(whole[-1], Done)
    for count in range(len(whole)):
        continued = replace(job, key=f"{job.key} cut {count}", resume=resume_of(whole[:count]))
        assert run(continued) == list(whole[count:]), f"cut after {count} outputs"


def inner_cuts(whole: Sequence[EngineOutput]) -> Iterator[tuple[int, str]]:
    """Every place within a delta: outputs before it, and its beginning."""
    for count, output in enumerate(whole):
        if isinstance(output, Delta):
            for length in range(1, len(output.text)):
                yield count, output.text[:length]


def check_every_inner_cut(
    whole: Sequence[EngineOutput], job: EngineJob, run: Callable[[EngineJob], list[EngineOutput]]
):
    """Continue where a part of a delta's text is there already: the rest of it must come, then what follows."""
    for count, known in inner_cuts(whole):
        continued = replace(
            job, key=f"{job.key} cut {count}+{len(known)}", resume=resume_of(whole[:count], more=known)
        )
        rest = Delta(text=whole[count].text[len(known) :])
        assert run(continued) == [rest, *whole[count + 1 :]], f"cut after {count} outputs and {known!r}"


class Runner:
    """An engine with its outputs; called with a job it returns all of the job's outputs."""

    def __init__(self, engine: Engine, outputs: Outputs) -> None:
        self.engine, self.outputs = engine, outputs

    def __call__(self, job: EngineJob) -> list[EngineOutput]:
        self.engine.start(job)
        self.outputs.end(job.key)
        return self.outputs.of(job.key)


def cut_before_progress(whole: Sequence[EngineOutput], number: int) -> Resume:
    """What a kill leaves that falls between the last delta of a part, counted from 0, and its progress."""
    progress = [index for index, output in enumerate(whole) if isinstance(output, Progress)]
    assert isinstance(whole[progress[number] - 1], Delta)
    return resume_of(whole[: progress[number]])


def cut_after_progress(whole: Sequence[EngineOutput], number: int) -> tuple[Resume, list[EngineOutput]]:
    """What is left by a kill right after a part's progress, and the outputs that must follow."""
    after = 1 + [index for index, output in enumerate(whole) if isinstance(output, Progress)][number]
    return resume_of(whole[:after]), list(whole[after:])
