"""Fusion jobs where no model takes all of their parts: a plan of what does, as a pipeline that stands for the job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from ccs_broker import topology
from ccs_broker.client.faults import checked
from ccs_broker.client.planning import Extras, PlanMaker
from ccs_broker.client.steps import Ask
from ccs_broker.contract.job import Job
from ccs_broker.contract.wire import load_json
from ccs_broker.contract.words import Modality, Overload
from ccs_broker.errors import InvalidInputError
from ccs_broker.pipelines.templates import LABELS, TEXT, literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.client.core import Submission
    from ccs_broker.client.planning import PipelineOptions
    from ccs_broker.client.steps import Asking
    from ccs_broker.contract.limits import Limits

__all__ = ["composed", "extras_of", "is_answered_by_a_model", "wants_a_plan"]

_ANSWER: Final = "answer"
_SEEN: Final = "seen"
_HEARD: Final = "heard"
#: What every outcome of such a plan says of itself.
_NOTE: Final = (
    "no model served takes these parts together: a text model made the answer from text read in the pictures, labels of"
    " a classifier, and transcripts"
)


def wants_a_plan(modality: object, options: Any) -> bool:
    """Whether a submission may need one: a fusion job that names no model."""
    return modality == Modality.FUSION and options.get("model") is None


def is_answered_by_a_model() -> Asking[bool]:
    """Ask whether some worker serves a model that takes fusion jobs."""
    clock, last = yield Ask(
        (("TIME",), ("ZREVRANGE", topology.MODELS + Modality.FUSION.value, 0, 0, "WITHSCORES"))
    )
    seconds, micros = cast("Sequence[bytes]", checked(clock))
    found = cast("Sequence[Any]", checked(last))
    if not found:
        return False
    until = found[1] if len(found) > 1 else found[0][1]
    return float(until) > int(seconds) * 1000 + int(micros) / 1000


def composed(submission: Submission, limits: Limits) -> PlanMaker:
    """The plan of a fusion job: pictures are read and labeled, sounds transcribed, and a text model told all of it.

    Raises:
        InvalidInputError: the job wishes to be refused if it can't be in time, which a plan can't.
    """
    job = load_json(Job, submission.entry.payload)
    if job.overload is Overload.REFUSE:
        raise InvalidInputError(
            "overload: no model served takes these parts together, and a plan of several jobs can't be refused for its"
            " deadline; leave it out"
        )
    common: PipelineOptions = {
        "qos": job.qos,
        "deadline_s": job.deadline_s,
        "tenant": job.tenant,
        "metadata": job.metadata or None,
        "output": _ANSWER,
    }
    maker = PlanMaker(common, limits)
    lines = [literal(job.prompt)] if job.prompt else []
    if job.images:
        maker.add(_SEEN, Modality.VISION, {"images": list(job.images)})
        lines.append(_about_pictures(len(job.images)))
    for number, medium in enumerate(job.audio, start=1):
        step, what = (
            (_HEARD, "the sound") if len(job.audio) == 1 else (f"{_HEARD}_{number}", f"sound {number}")
        )
        maker.add(step, Modality.AUDIO, {"audio": medium})
        lines.append(f"What is said in {what}:\n{{{step}.{TEXT}}}")
    sampling = job.sampling.model_dump(exclude_defaults=True)
    runtime = {} if job.max_runtime_s is None else {"max_runtime_s": job.max_runtime_s}
    maker.add(_ANSWER, Modality.TEXT, {**sampling, **runtime, "prompt": "\n\n".join(lines)})
    maker.blobs |= submission.blobs
    return maker


def extras_of(submission: Submission, maker: PlanMaker) -> Extras:
    """What the pipeline brings along for the job that it stands for."""
    steps = [
        # A script passes this on, and makes an object of an empty list.
        {"step": step.name, "modality": step.job.modality.value}
        | ({"takes": list(step.takes)} if step.takes else {})
        for step in maker.plan().steps
    ]
    return Extras(
        idempotency=submission.entry.idempotency,
        digest=submission.entry.digest,
        plan=json.dumps({"note": _NOTE, "steps": steps}),
    )


def _about_pictures(count: int) -> str:
    what = "the picture" if count == 1 else "the pictures"
    return (
        f"Text that was read in {what}:\n{{{_SEEN}.{TEXT}}}\n\n"
        f"Labels that a classifier gave {what}, with their scores: {{{_SEEN}.{LABELS}}}"
    )
