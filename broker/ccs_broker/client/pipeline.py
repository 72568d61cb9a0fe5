"""Pipelines: several jobs, of any modalities, with one id, one stream and one deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, Unpack

from ccs_broker.client.handles import AsyncJobHandle, JobHandle
from ccs_broker.client.planning import begin
from ccs_broker.errors import InvalidInputError
from ccs_broker.pipelines.records import STEP_NAME, OnFailure, step_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccs_broker.client.aio import AsyncClient
    from ccs_broker.client.planning import Extras, PlanMaker, StepOptions
    from ccs_broker.client.sync import Client
    from ccs_broker.contract.words import Modality

__all__ = ["AsyncPipeline", "AsyncPipelineHandle", "Pipeline", "PipelineHandle"]


class PipelineHandle(JobHandle):
    """A pipeline, seen from a client: its stream holds the events of all steps, with their names."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PipelineHandle({self.id!r})"

    def step(self, name: str) -> JobHandle:
        """The job of one step; it has an own stream and outcome, once it was published."""
        return JobHandle(self._client, step_id(self.id, _checked(name)))


class AsyncPipelineHandle(AsyncJobHandle):
    """As :class:`PipelineHandle`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"AsyncPipelineHandle({self.id!r})"

    def step(self, name: str) -> AsyncJobHandle:
        """As :meth:`PipelineHandle.step`."""
        return AsyncJobHandle(self._client, step_id(self.id, _checked(name)))


class Pipeline:
    """Steps that become a pipeline; made by :meth:`ccs_broker.client.sync.Client.pipeline`."""

    def __init__(self, client: Client, maker: PlanMaker) -> None:
        self._client = client
        self._maker = maker

    def step(
        self,
        name: str,
        modality: Modality | str,
        *,
        after: str | Iterable[str] = (),
        on_failure: OnFailure | str = OnFailure.FAIL,
        default: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Add a step, a job as ``submit`` takes it.

        Its prompt may take the texts of earlier steps, as in ``"Answer: {transcript.text}"``: it then begins when they
        have ended. Steps that need nothing of each other run side by side.

        Args:
            name: lower-case letters, digits and underscores; the name of its events.
            modality: as of any job.
            after: names of earlier steps that it waits for without taking their texts.
            on_failure: ``fail`` ends the pipeline as the step ended, and cancels the others; ``skip`` goes on without
                it and without the steps that take its text; ``default`` goes on with ``default`` as its text.
            default: the text for ``on_failure="default"``.
            options: prompt, media, model and sampling; class, deadline and tenant are the pipeline's.

        Raises:
            InvalidInputError: the step is wrong, or names one that isn't there.
        """
        self._maker.add(name, modality, options, after=after, on_failure=on_failure, default=default)
        return self

    def submit(self, extras: Extras | None = None) -> PipelineHandle:
        """Submit it; what it is made of can't be changed any more, and submitting it again is refused.

        Args:
            extras: what it brings along if it stands for a job.

        Raises:
            InvalidInputError: it has no steps, or was submitted before.
            NotFoundError: a medium given by reference isn't in the store.
            QueueUnavailableError: the server did not take it; ``maybe_accepted`` says if it may have.
        """
        plan = self._maker.plan()
        begun = self._client._run(begin(self._client._core.calls, plan, self._maker.blobs, extras))
        if begun == plan.id:
            self._client._sender.send(plan)
        return PipelineHandle(self._client, begun)


class AsyncPipeline:
    """As :class:`Pipeline`."""

    def __init__(self, client: AsyncClient, maker: PlanMaker) -> None:
        self._client = client
        self._maker = maker

    def step(
        self,
        name: str,
        modality: Modality | str,
        *,
        after: str | Iterable[str] = (),
        on_failure: OnFailure | str = OnFailure.FAIL,
        default: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """As :meth:`Pipeline.step`; media are read here and now."""
        self._maker.add(name, modality, options, after=after, on_failure=on_failure, default=default)
        return self

    async def submit(self, extras: Extras | None = None) -> AsyncPipelineHandle:
        """As :meth:`Pipeline.submit`; Celery sends it in a thread."""
        plan = self._maker.plan()
        begun = await self._client._run(begin(self._client._core.calls, plan, self._maker.blobs, extras))
        if begun == plan.id:
            await asyncio.to_thread(self._client._sender.send, plan)
        return AsyncPipelineHandle(self._client, begun)


def _checked(name: object) -> str:
    if not isinstance(name, str) or not STEP_NAME.fullmatch(name):
        raise InvalidInputError("a step's name is 1 to 31 lower-case letters, digits and underscores")
    return name
