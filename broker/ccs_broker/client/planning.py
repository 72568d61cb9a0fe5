"""Plans of pipelines, from what callers say: named steps, each a job, which may take the texts of earlier ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Final, TypedDict

from redis.exceptions import ResponseError

from ccs_broker.blobs import put_blob
from ccs_broker.client.core import run_calls
from ccs_broker.client.faults import checked, refusal
from ccs_broker.client.files import read_file
from ccs_broker.client.steps import Ask
from ccs_broker.contract.build import build_job, parse_word
from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.errors import (
    ConflictError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    PayloadTooLargeError,
)
from ccs_broker.ledger.records import Beginning, PublishStatus
from ccs_broker.pipelines.estimating import ask_costs, ways_of
from ccs_broker.pipelines.records import MAX_STEPS, STEP_NAME, OnFailure, Plan, Step, step_id
from ccs_broker.pipelines.templates import taken
from ccs_broker.priority import rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import JsonValue

    from ccs_broker.client.steps import Asking, Command
    from ccs_broker.contract.build import BuiltJob
    from ccs_broker.contract.limits import Limits
    from ccs_broker.contract.media import MediaInput
    from ccs_broker.contract.words import Modality, QosClass
    from ccs_broker.ledger.calls import LedgerCalls

__all__ = ["Extras", "PipelineOptions", "PlanMaker", "StepOptions", "begin"]

#: What a pipeline says for all of its steps.
_COMMON: Final = ("qos", "deadline_s", "tenant", "overload", "metadata")


class PipelineOptions(TypedDict, total=False):
    """What a caller may say about a pipeline; it counts for all of its steps."""

    qos: QosClass | str
    #: Seconds from submission by which all of it must have finished; steps get their parts of it.
    deadline_s: float | None
    tenant: str
    metadata: Mapping[str, JsonValue] | None
    #: The step whose text is the pipeline's; None: the last one.
    output: str | None


class StepOptions(TypedDict, total=False):
    """What a caller may say about a step's job, as about any job, but for what its pipeline says."""

    prompt: str
    images: Sequence[MediaInput] | MediaInput | None
    audio: MediaInput | Sequence[MediaInput] | None
    model: str | None
    max_runtime_s: float | None
    max_new_tokens: int
    temperature: float
    top_p: float | None
    top_k: int | None
    repetition_penalty: float
    seed: int | None
    stop: str | Sequence[str] | None


class PlanMaker:
    """Gathers the steps of one pipeline."""

    def __init__(self, options: PipelineOptions, limits: Limits) -> None:
        unknown = sorted(set(options) - set(PipelineOptions.__annotations__))
        if unknown:
            raise InvalidInputError(
                f"unknown argument {unknown[0]!r}; known: {', '.join(PipelineOptions.__annotations__)}"
            )
        self._output = options.get("output")
        self._common = {
            name: value for name, value in options.items() if name != "output" and value is not None
        }
        # Its rules are those of a job.
        self._model = build_job("text", {**self._common, "prompt": "-"}, job_id="-", limits=limits).job
        self._limits = limits
        self._id = token_hex(16)
        self._steps: dict[str, Step] = {}
        self.blobs: dict[str, bytes] = {}

    def add(
        self,
        name: str,
        modality: Modality | str,
        options: Mapping[str, object],
        *,
        after: str | Iterable[str] = (),
        on_failure: OnFailure | str = OnFailure.FAIL,
        default: str | None = None,
    ) -> None:
        """Add a step; see :meth:`ccs_broker.client.pipeline.Pipeline.step`."""
        try:
            policy = self._policy(name, on_failure, default)
            built = self._built(name, modality, options)
            takes = taken(built.job.prompt)
            waits = (after,) if isinstance(after, str) else tuple(after)
            self._check_known((*takes, *waits))
        except InvalidInputError as error:
            raise type(error)(f"step {_shown(name)}: {error.message}") from None
        self.blobs |= built.blobs
        self._steps[name] = Step(
            name=name, job=built.job, takes=takes, after=waits, on_failure=policy, default=default or ""
        )

    def plan(self) -> Plan:
        """The whole plan.

        Raises:
            InvalidInputError: it has no steps, or none of the output's name.
        """
        if not self._steps:
            raise InvalidInputError("a pipeline needs at least one step")
        output = self._output or next(reversed(self._steps))
        if output not in self._steps:
            raise InvalidInputError("output: should be the name of a step")
        return Plan(
            id=self._id,
            steps=tuple(self._steps.values()),
            output=output,
            deadline_s=self._model.deadline_s,
            qos=self._model.qos,
            tenant=self._model.tenant,
        )

    def _policy(self, name: str, on_failure: OnFailure | str, default: str | None) -> OnFailure:
        if _shown(name) != name:
            raise InvalidInputError(
                "a name is 1 to 31 lower-case letters, digits and underscores, beginning with a letter"
            )
        if name in self._steps:
            raise InvalidInputError("there is one of this name already")
        if len(self._steps) >= MAX_STEPS:
            raise PayloadTooLargeError(f"a pipeline has at most {MAX_STEPS} steps")
        policy = parse_word(OnFailure, "on_failure", on_failure)
        if (policy is OnFailure.DEFAULT) != isinstance(default, str):
            raise InvalidInputError("default: a text goes with on_failure='default', and only with that")
        return policy

    def _built(self, name: str, modality: Modality | str, options: Mapping[str, object]) -> BuiltJob:
        if common := [one for one in _COMMON if one in options]:
            raise InvalidInputError(f"{common[0]} is said for the whole pipeline, not for a step")
        return build_job(
            modality,
            {**self._common, **options},
            job_id=step_id(self._id, name),
            limits=self._limits,
            read_path=read_file,
        )

    def _check_known(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._steps:
                known = f"those so far are {', '.join(self._steps)}" if self._steps else "this is the first"
                raise InvalidInputError(
                    f"it names a step {_shown(name)!r}, and steps can only take or wait for earlier ones ({known}); a"
                    " prompt that is to hold the braces themselves doubles them: {{name.text}}"
                )


def _shown(name: object) -> str:
    """A name as an error may repeat it."""
    return name if isinstance(name, str) and STEP_NAME.fullmatch(name) else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a pipeline that stands for a job brings along."""

    idempotency: str = ""
    digest: str = ""
    #: What its outcome is to say of how it was made.
    plan: str = ""


def begin(
    calls: LedgerCalls, plan: Plan, blobs: Mapping[str, bytes], extras: Extras | None = None
) -> Asking[str]:
    """Split the time over the steps, upload the media and write the pipeline's record; gives its id.

    That is another one's where the idempotency key was used before with the same body: then nothing was begun.

    Raises:
        InvalidInputError: it was begun before.
        ConflictError: the idempotency key was used with another body.
        NotFoundError: a medium given by reference isn't in the store.
        QueueUnavailableError: the server refused.
    """
    extras = extras or Extras()
    costs = yield Ask(ask_costs(plan))
    ways = ways_of(plan, [checked(reply) for reply in costs])
    beginning = Beginning(
        id=plan.id,
        expire_ms=math.ceil((plan.deadline_s or MAX_LIFETIME_S) * 1000),
        rank=rank_of(plan.qos),
        tenant=plan.tenant,
        blobs=plan.blobs,
        output=plan.output,
        steps=tuple(step.name for step in plan.steps),
        fields=plan.fields(ways) | ({"plan": extras.plan} if extras.plan else {}),
        idempotency=extras.idempotency,
        digest=extras.digest,
    )
    uploads: list[Command] = [put_blob(sha, data) for sha, data in blobs.items()]
    (reply,) = yield from run_calls((calls.begin(beginning),), uploads)
    if isinstance(reply, ResponseError):
        raise refusal(reply)
    begun = calls.read_publish(reply)
    if begun.status is PublishStatus.NO_BLOB:
        raise NotFoundError(f"medium {begun.id[:12]} is not in the store (any more); give its bytes")
    if begun.status is PublishStatus.CONFLICT:
        raise ConflictError(f"the idempotency key was used for job {begun.id}, with another body")
    if begun.status is PublishStatus.SAME and begun.id == plan.id:
        raise InvalidInputError("this pipeline was submitted before; make another one")
    if begun.status not in {PublishStatus.OK, PublishStatus.SAME}:
        raise InternalError(f"beginning a pipeline was answered with {begun.status.value!r}")
    return begun.id
