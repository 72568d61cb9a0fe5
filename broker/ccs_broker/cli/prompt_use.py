"""Tells who gives a prompt that the model which serves the job won't look at, as far as workers have reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker.errors import QueueUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccs_broker.client import Client, WorkerInfo

__all__ = ["unused_prompt_note"]


def unused_prompt_note(client: Client, modality: str, model: str | None, prompt: str) -> str:
    """A sentence where every model that may serve the job reports that it takes no prompt; else empty."""
    if not prompt or modality == "text":
        return ""
    try:
        workers = client.workers()
    except QueueUnavailableError:
        # The job is submitted all the same, and that was what mattered.
        return ""
    unused = _aliases_that_take_none(workers, modality, model)
    if not unused:
        return ""
    named = ", ".join(sorted(unused))
    return f"the {modality} model {named} takes no prompt: what you wrote has no influence on the answer"


def _aliases_that_take_none(workers: Iterable[WorkerInfo], modality: str, model: str | None) -> set[str]:
    """The models that may serve the job, if none of them takes a prompt."""
    served = [
        entry
        for worker in workers
        for entry in worker.report.get("models", ())
        if entry.get("modality") == modality and model in (None, entry.get("alias"))
    ]
    if model is None:
        served = [entry for entry in served if entry.get("default")] or served
    # Only a model that is loaded knows; a worker of another version may not say.
    if any(entry.get("takes_prompt") is not False for entry in served):
        return set()
    return {str(entry.get("alias", "?")) for entry in served}
