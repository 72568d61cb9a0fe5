"""Engines that drift and leak in known ways, for the tests of ``ccs verify``; simulated but for that.

``registered`` makes them known to engine processes: their names in a model file are the keys of ``FAULTS``.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ccs_broker.errors import CcsError
from ccs_workers.engines.protocol import Delta, Done, Failed
from ccs_workers.engines.simulated.engine import SimulatedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccs_workers.engines.protocol import Emit, EngineInfo, EngineJob, EngineOutput
    from ccs_workers.models.spec import ModelSpec

    Fault = Callable[[EngineOutput, EngineJob, list[EngineJob]], EngineOutput]

ROOT = Path(__file__).parents[1]
#: Stands in the prompt of one sort of job, the second one: "2: seeded".
MARK = "count to ten"
#: The first token that a drifting job says otherwise.
DRIFTS_AT = 5


def _is_marked(job):
    return MARK in job.prompt


def _late(output):
    return isinstance(output, Delta) and output.token_ids and output.token_ids[0] >= DRIFTS_AT


def drifting(output, job, others):
    """Say other words in company."""
    return replace(output, text=" drift") if others and _is_marked(job) and _late(output) else output


def drifting_tokens(output, job, others):
    """Say the same words by other tokens in company."""
    if others and _is_marked(job) and _late(output):
        return replace(output, token_ids=tuple(number + 1000 for number in output.token_ids))
    return output


def drifting_resumed(output, job, others):
    """Go on in other words when continued."""
    return replace(output, text=" drift") if job.resume and _is_marked(job) and _late(output) else output


def drifting_data(output, job, others):
    """Find something else in company."""
    if others and _is_marked(job) and isinstance(output, Done):
        return replace(output, data={**output.data, "label": "other"})
    return output


def leaking(output, job, others):
    """Say a piece of another job's prompt."""
    if others and _is_marked(job) and _late(output):
        return replace(output, text=" " + others[0].prompt)
    return output


def leaking_data(output, job, others):
    """Tell another job's prompt beside the text."""
    if others and _is_marked(job) and isinstance(output, Done):
        return replace(output, data={**output.data, "seen": [other.prompt for other in others]})
    return output


def leaking_errors(output, job, others):
    """Put another job's prompt into an error message."""
    if others and isinstance(output, Failed):
        return replace(output, message=f"not as in {others[0].prompt!r}")
    return output


def telling_errors(output, job, others):
    """Put the job's own prompt into an error message."""
    return replace(output, message=f"can't do {job.prompt!r}") if isinstance(output, Failed) else output


FAULTS: dict[str, Fault] = {
    "drifting": drifting,
    "drifting-half": drifting,
    "drifting-tokens": drifting_tokens,
    "drifting-resumed": drifting_resumed,
    "drifting-data": drifting_data,
    "leaking": leaking,
    "leaking-half": leaking,
    "leaking-data": leaking_data,
    "leaking-errors": leaking_errors,
    "telling-errors": telling_errors,
}


class FaultyEngine(SimulatedEngine):
    """The simulated engine with the fault of its name in the model file."""

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        self._jobs: dict[str, EngineJob] = {}
        self._fault = FAULTS[spec.engine]
        self._true_emit = emit
        super().__init__(spec, self._spoil)

    def load(self) -> EngineInfo:
        info = super().load()
        return replace(info, dtype="bfloat16") if self._spec.engine.endswith("-half") else info

    def start(self, job: EngineJob) -> None:
        self._jobs[job.key] = job
        try:
            # Continued as if it had said what a sound engine would have: the fault is to be found by its words.
            super().start(job)
        except CcsError as error:
            self._spoil(job.key, Failed(code=error.code, message=error.message))

    def _spoil(self, key: str, output: EngineOutput) -> None:
        others = [job for other, job in list(self._jobs.items()) if other != key]
        spoiled = self._fault(output, self._jobs[key], others)
        if isinstance(output, Done | Failed):
            del self._jobs[key]
        self._true_emit(key, spoiled)


class InProcess:
    """Stands in an ``EngineHandle``'s place: the engine runs here, and a kill is a close."""

    engine_class: type[SimulatedEngine] = FaultyEngine

    def __init__(
        self,
        spec: ModelSpec,
        on_outputs: Callable[[Sequence[tuple[str, EngineOutput]]], None],
        on_death: Callable[[str], None],
    ) -> None:
        self.info: EngineInfo | None = None
        self.on_outputs, self.on_death = on_outputs, on_death
        self.engine = self.engine_class(spec, self.emit)

    def emit(self, key: str, output: EngineOutput) -> None:
        self.on_outputs([(key, output)])

    def start(self) -> EngineInfo:
        self.info = self.engine.load()
        return self.info

    def submit(self, job: EngineJob) -> None:
        try:
            self.engine.start(job)
        except CcsError as error:
            self.emit(job.key, Failed(code=error.code, message=error.message))

    def cancel(self, key: str) -> None:
        self.engine.cancel(key)

    def kill(self) -> None:
        self.engine.close()
        self.on_death("signal 9")

    def close(self) -> None:
        self.engine.close()


@contextlib.contextmanager
def registered(folder: Path):
    """Let the engine processes that are started meanwhile know these engines."""
    lines = [f"ENGINES[{name!r}] = 'tests.faulty_engines:FaultyEngine'" for name in FAULTS]
    (folder / "sitecustomize.py").write_text(
        "\n".join(["from ccs_workers.engines.registry import ENGINES", *lines])
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
