"""Steps of pipelines among the messages: published with what earlier steps came to, at the moment Celery sends them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccs_broker import topology
from ccs_broker.errors import InvalidInputError, NoSuitableWorkerError
from ccs_broker.ledger import PublishStatus
from ccs_broker.pipelines.publishing import StepCall, ask_step, read_step
from ccs_broker.transport.message import LINKS, RUN_TASK, decode_body, refused_entry, stored_message

if TYPE_CHECKING:
    from ccs_broker.errors import CcsError
    from ccs_broker.ledger import Entry, Ledger
    from ccs_broker.pipelines.publishing import FoundStep
    from ccs_broker.policy import Policy

__all__ = ["publish_step", "step_call"]


def step_call(message: dict[str, Any]) -> StepCall | None:
    """The step that a checked message of our own stands for; None if it is a job by itself, or no job."""
    if message["headers"]["task"] != RUN_TASK:
        return None
    args, _, _ = decode_body(message)
    return StepCall.of(args[-1]) if args else None


def publish_step(ledger: Ledger, queue: str, message: dict[str, Any], call: StepCall) -> None:
    """Publish a step; nothing, if its pipeline has ended."""
    with ledger.redis.pipeline(transaction=False) as pipe:
        for command in ask_step(call):
            pipe.execute_command(*command)
        found = read_step(call, pipe.execute())
    if found is None:
        return
    policy = ledger.calls.policy
    published = ledger.publish(_entry(message, queue, found, policy))
    if published.status is PublishStatus.NO_MODEL:
        error = NoSuitableWorkerError(f"no worker of {queue} serves the model {found.job.model!r}")
        ledger.publish(_entry(message, queue, found, policy, error))


def _entry(
    message: dict[str, Any], queue: str, found: FoundStep, policy: Policy, error: CcsError | None = None
) -> Entry:
    """The entry of a step; one that can't be run says so when a worker takes it, as its pipeline must learn of it."""
    # Its times are the pipeline's.
    headers = {key: value for key, value in message["headers"].items() if key not in {"eta", "expires"}}
    message = {**message, "headers": headers}
    _, _, embed = decode_body(message)
    linked = any(embed.get(name) for name in LINKS)
    stored = stored_message(message, found.call.id, topology.modality_of(queue), embed)
    if error is None:
        try:
            return replace(found.entry(policy), message=stored, linked=linked)
        except InvalidInputError as wrong:
            error = wrong
    refused = refused_entry(message, queue, error, policy=policy)
    return replace(refused, message=stored, linked=linked, step=found.place(), celery=False)
