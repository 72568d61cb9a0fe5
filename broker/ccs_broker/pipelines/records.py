"""Records of a pipeline: its steps, and the whole plan."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ccs_broker.contract.wire import dump_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccs_broker.contract.job import Job
    from ccs_broker.contract.words import QosClass

__all__ = ["MAX_STEPS", "STEP_NAME", "OnFailure", "Plan", "Step", "Way", "step_id"]

#: With a pipeline's id of 32 characters before it, a step's name still gives an id that a job can have.
STEP_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
#: Most steps of one pipeline.
MAX_STEPS: Final = 64


class OnFailure(StrEnum):
    """What becomes of a pipeline when a step doesn't succeed."""

    #: It ends as the step did; the other steps are cancelled.
    FAIL = "fail"
    #: It goes on; steps that take the step's text are skipped too.
    SKIP = "skip"
    #: It goes on with a text given beforehand in the place of the step's.
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: a job whose prompt may have places for the texts of others."""

    name: str
    job: Job
    #: Steps whose texts its prompt takes.
    takes: tuple[str, ...] = ()
    #: Further steps that it waits for.
    after: tuple[str, ...] = ()
    on_failure: OnFailure = OnFailure.FAIL
    default: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """All steps that it waits for."""
        return tuple(dict.fromkeys((*self.takes, *self.after)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Expected device time of a step, and of the longest way from its end to the pipeline's, in microseconds."""

    cost_us: float
    rest_us: float

    @property
    def share(self) -> float:
        """Of the time that is left when it begins, its part."""
        return self.cost_us / (self.cost_us + self.rest_us) if self.cost_us > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole pipeline; steps in an order in which none comes before what it needs."""

    id: str
    steps: tuple[Step, ...]
    #: The step whose text is the pipeline's.
    output: str
    qos: QosClass
    tenant: str
    #: Seconds from submission by which all of it must have finished.
    deadline_s: float | None = None

    def fields(self, ways: Mapping[str, Way]) -> dict[str, str | bytes]:
        """What its record holds for its steps until each is published; see ``lua/lib_pipeline.lua``."""
        found: dict[str, str | bytes] = {}
        for step in self.steps:
            share = None if self.deadline_s is None else round(ways[step.name].share, 6)
            found[f"spec:{step.name}"] = json.dumps({"policy": step.on_failure, "share": share}).encode() + (
                b"\n" + dump_json(step.job)
            )
            if step.on_failure is OnFailure.DEFAULT:
                found[f"default:{step.name}"] = step.default
        return found

    @property
    def blobs(self) -> tuple[str, ...]:
        """All media of all steps, by SHA-256."""
        return tuple(dict.fromkeys(media.sha256 for step in self.steps for media in step.job.media))


def step_id(pipeline: str, name: str) -> str:
    """Id of a step's job."""
    return f"{pipeline}-{name}"
