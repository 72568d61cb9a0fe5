"""How a step comes to its job when Celery sends it: from the pipeline's record, with the texts that it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from ccs_broker import topology
from ccs_broker.contract.job import Job
from ccs_broker.contract.limits import DEFAULT_LIMITS
from ccs_broker.contract.outcome import Outcome
from ccs_broker.contract.parts import TextPart
from ccs_broker.contract.wire import dump_json, load_json
from ccs_broker.errors import PayloadTooLargeError
from ccs_broker.ledger.entries import entry_of
from ccs_broker.ledger.records import StepPlace
from ccs_broker.pipelines.records import step_id
from ccs_broker.pipelines.templates import LABELS, TEXT, filled
from ccs_broker.priority import urgency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from ccs_broker.ledger.records import Entry
    from ccs_broker.policy import Policy

__all__ = ["FoundStep", "StepCall", "ask_step", "read_step"]

_SKIPPED: Final = "skipped"
_DEFAULTED: Final = "defaulted"
#: Labels of a picture that a prompt takes; a label and its score.
_MOST_LABELS: Final = 3
_PAIR: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCall:
    """What a message of the canvas says: a step of a pipeline, and the steps whose texts it takes."""

    pipeline: str
    name: str
    takes: tuple[str, ...]

    @property
    def id(self) -> str:
        """Id of the step's job."""
        return step_id(self.pipeline, self.name)

    def arguments(self) -> dict[str, object]:
        """As the arguments of ``ccs.run``."""
        return {"pipeline": self.pipeline, "step": self.name, "takes": list(self.takes)}

    @classmethod
    def of(cls, arguments: object) -> StepCall | None:
        """Inverse of :meth:`arguments`; None for a job's."""
        if not isinstance(arguments, dict) or set(arguments) != {"pipeline", "step", "takes"}:
            return None
        return cls(
            pipeline=str(arguments["pipeline"]), name=str(arguments["step"]), takes=tuple(arguments["takes"])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """A step as its pipeline's record has it, just before it is published."""

    call: StepCall
    job: Job
    on_failure: str
    #: Milliseconds that the pipeline has left.
    left_ms: int
    #: Of these, the part that the step should take; None: the pipeline has no deadline.
    share: float | None
    states: Mapping[str, str]
    #: What the steps that it takes found, by step and kind.
    taken: Mapping[tuple[str, str], str]

    def entry(self, policy: Policy) -> Entry:
        """The entry of its job.

        Raises:
            PayloadTooLargeError: the prompt would be over the limit with the texts in it.
        """
        skipped = any(self.states.get(name) == _SKIPPED for name in self.call.takes)
        job = self.job if skipped else self._with_texts()
        left_s = max(0.001, self.left_ms / 1000)
        hoped_s = None if self.share is None else max(0.001, left_s * self.share)
        base = entry_of(job, payload=dump_json(job), policy=policy)
        return replace(
            base,
            urgency=urgency(job.qos, hoped_s, policy=policy, overload=job.overload),
            expire_ms=max(1, self.left_ms),
            # Celery joins the parts of a chord by their results.
            celery=True,
            step=self.place(skipped=skipped),
        )

    def place(self, *, skipped: bool = False) -> StepPlace:
        """Its place in the pipeline."""
        return StepPlace(
            pipeline=self.call.pipeline, name=self.call.name, on_failure=self.on_failure, skipped=skipped
        )

    def _with_texts(self) -> Job:
        if not self.call.takes:
            return self.job
        parts = tuple(
            TextPart(text=filled(part.text, self.taken)) if isinstance(part, TextPart) else part
            for part in self.job.parts
        )
        size = sum(len(part.text.encode()) for part in parts if isinstance(part, TextPart))
        if size > DEFAULT_LIMITS.text_bytes:
            raise PayloadTooLargeError(
                f"the prompt has {size} bytes of UTF-8 with the texts that it takes, over the limit text_bytes of"
                f" {DEFAULT_LIMITS.text_bytes}"
            )
        return self.job.model_copy(update={"parts": parts})


def ask_step(call: StepCall) -> tuple[tuple[str, ...], ...]:
    """The commands that read all that a step needs, for one round trip."""
    states = tuple(f"st:{name}" for name in call.takes)
    defaults = tuple(f"default:{name}" for name in call.takes)
    record = ("HMGET", topology.JOB + call.pipeline, f"spec:{call.name}", "expire", *states, *defaults)
    outcomes = (("HGET", topology.JOB + step_id(call.pipeline, name), "outcome") for name in call.takes)
    return (record, ("TIME",), *outcomes)


def read_step(call: StepCall, replies: Sequence[object]) -> FoundStep | None:
    """The step; None if its pipeline has ended, and nothing is to be published any more.

    Raises:
        InvalidInputError: the record isn't one of ours.
    """
    record, clock, *outcomes = replies
    spec, expire, *more = cast("Sequence[bytes | None]", record)
    if spec is None or expire is None:
        return None
    head, _, body = spec.partition(b"\n")
    told: dict[str, Any] = json.loads(head)
    seconds, micros = cast("Sequence[bytes]", clock)
    states = {
        name: state.decode() for name, state in zip(call.takes, more[: len(call.takes)], strict=True) if state
    }
    defaults = dict(zip(call.takes, more[len(call.takes) :], strict=True))
    taken: dict[tuple[str, str], str] = {}
    for (name, default), outcome in zip(
        defaults.items(), cast("Sequence[bytes | None]", outcomes), strict=True
    ):
        stands_in = default if states.get(name) == _DEFAULTED else None
        taken[name, TEXT], taken[name, LABELS] = _found(outcome, stands_in)
    return FoundStep(
        call=call,
        job=load_json(Job, body),
        on_failure=told["policy"],
        share=told["share"],
        left_ms=int(expire) - (int(seconds) * 1000 + int(micros) // 1000),
        states=states,
        taken=taken,
    )


def _found(outcome: bytes | None, default: bytes | None) -> tuple[str, str]:
    """Text and labels of a step."""
    if default is not None:
        return default.decode(), ""
    told = Outcome.model_validate_json(outcome) if outcome else None
    return (told.text, _labels(told.data.get("images"))) if told else ("", "")


def _labels(images: JsonValue) -> str:
    """``espresso (0.90), cup (0.05); cat (0.80)``: the likeliest of each picture."""
    pictures = (
        [image.get("labels") for image in images if isinstance(image, dict)]
        if isinstance(images, list)
        else []
    )
    told = []
    for labels in pictures:
        pairs = (
            [
                f"{label} ({score:.2f})"
                for label, score in (
                    pair for pair in labels or () if isinstance(pair, list) and len(pair) == _PAIR
                )
                if isinstance(score, int | float)
            ]
            if isinstance(labels, list)
            else []
        )
        told.append(", ".join(pairs[:_MOST_LABELS]))
    return "; ".join(one for one in told if one)
