"""The asynchronous client: performs the plans of the core on an event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal, Self, TypeVar, Unpack, cast, overload

from ccs_broker.client import changing, dead, looking
from ccs_broker.client.aio_link import AsyncBell, AsyncLink
from ccs_broker.client.core import BulkJob, ClientCore, SubmitOptions, bulk_answer, checked_id
from ccs_broker.client.following import JobFollower
from ccs_broker.client.fusion import composed, extras_of, is_answered_by_a_model, wants_a_plan
from ccs_broker.client.handles import AsyncJobHandle
from ccs_broker.client.pipeline import AsyncPipeline
from ccs_broker.client.planning import PlanMaker
from ccs_broker.client.sender import CanvasSender
from ccs_broker.client.steps import Ask, Listen, Pause, Subscribe
from ccs_broker.contract.event import Event
from ccs_broker.contract.limits import DEFAULT_LIMITS, Limits
from ccs_broker.errors import CcsError, InternalError, QueueUnavailableError
from ccs_broker.settings import BrokerSettings, LedgerSettings, ledger_settings, require_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType

    from ccs_broker.client import records
    from ccs_broker.client.planning import PipelineOptions
    from ccs_broker.client.steps import Asking, Following, Step
    from ccs_broker.contract.outcome import Outcome
    from ccs_broker.contract.words import Modality

T = TypeVar("T")


class AsyncClient:
    """The twin of :class:`ccs_broker.client.sync.Client` for the tasks of one event loop."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout_s: float = 5.0,
        limits: Limits = DEFAULT_LIMITS,
        ledger: LedgerSettings | None = None,
    ) -> None:
        settings = BrokerSettings(
            url=require_url(url), timeout_s=timeout_s, ledger=ledger or ledger_settings()
        )
        self._timeout_s = timeout_s
        self._link = AsyncLink(settings)
        self._core = ClientCore(settings.ledger, limits)
        self._sender = CanvasSender(settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; streams that are open end when they are closed."""
        await self._link.close()
        await asyncio.to_thread(self._sender.close)

    async def submit(self, modality: Modality | str, **options: Unpack[SubmitOptions]) -> AsyncJobHandle:
        """As :meth:`ccs_broker.client.sync.Client.submit`; media are read and hashed in a thread."""
        if options.get("images") or options.get("audio"):
            submission = await asyncio.to_thread(self._core.prepare, modality, options)
        else:
            submission = self._core.prepare(modality, options)
        if wants_a_plan(modality, options) and not await self._run(is_answered_by_a_model()):
            maker = composed(submission, self._core.limits)
            return await AsyncPipeline(self, maker).submit(extras_of(submission, maker))
        return AsyncJobHandle(self, await self._run(self._core.submit(submission)))

    @overload
    async def submit_many(
        self, jobs: Iterable[BulkJob], *, return_errors: Literal[False] = False
    ) -> list[AsyncJobHandle]: ...

    @overload
    async def submit_many(
        self, jobs: Iterable[BulkJob], *, return_errors: Literal[True]
    ) -> list[AsyncJobHandle | CcsError]: ...

    async def submit_many(
        self, jobs: Iterable[BulkJob], *, return_errors: bool = False
    ) -> list[AsyncJobHandle] | list[AsyncJobHandle | CcsError]:
        """As :meth:`ccs_broker.client.sync.Client.submit_many`; jobs are validated in a thread."""
        submissions = await asyncio.to_thread(self._core.prepare_many, jobs)
        found = await self._run(self._core.submit_many(submissions))
        return bulk_answer(found, lambda job_id: AsyncJobHandle(self, job_id), return_errors=return_errors)

    def job(self, job_id: str) -> AsyncJobHandle:
        """Attach to a job by its id, from any process; asks the server nothing.

        Raises:
            InvalidInputError: no job can have such an id.
        """
        return AsyncJobHandle(self, checked_id(job_id))

    def pipeline(self, **options: Unpack[PipelineOptions]) -> AsyncPipeline:
        """As :meth:`ccs_broker.client.sync.Client.pipeline`."""
        return AsyncPipeline(self, PlanMaker(options, self._core.limits))

    async def queues(self) -> records.QueueReport:
        """Depth of every queue."""
        return await self._run(looking.queues())

    async def workers(self) -> tuple[records.WorkerInfo, ...]:
        """The workers that count as alive, and what each reported last."""
        return await self._run(looking.workers())

    async def tenants(self) -> tuple[records.TenantShare, ...]:
        """As :meth:`ccs_broker.client.sync.Client.tenants`."""
        return await self._run(changing.tenants())

    async def set_weight(self, tenant: str, weight: float) -> None:
        """As :meth:`ccs_broker.client.sync.Client.set_weight`."""
        await self._run(changing.set_weight(self._core, tenant, weight))

    async def dead(self, limit: int = dead.DEFAULT_LIMIT) -> records.DeadReport:
        """As :meth:`ccs_broker.client.sync.Client.dead`."""
        return await self._run(dead.listed(limit))

    async def dead_job(self, job_id: str, *, raw: bool = False) -> records.DeadJobDetails:
        """As :meth:`ccs_broker.client.sync.Client.dead_job`."""
        return await self._run(dead.job_details(job_id, raw=raw))

    async def dead_letter(self, index: int, *, raw: bool = False) -> records.DeadLetterDetails:
        """As :meth:`ccs_broker.client.sync.Client.dead_letter`."""
        return await self._run(dead.letter_details(index, raw=raw))

    async def replay(self, job_id: str) -> AsyncJobHandle:
        """As :meth:`ccs_broker.client.sync.Client.replay`."""
        return AsyncJobHandle(self, await self._run(dead.replay(self._core, job_id)))

    async def purge(
        self,
        jobs: Iterable[str] | Literal["all"] = (),
        letters: Iterable[int] | Literal["all"] = (),
    ) -> records.Purged:
        """As :meth:`ccs_broker.client.sync.Client.purge`."""
        return await self._run(dead.purge(self._core, jobs, letters))

    async def ping(self) -> float:
        """Seconds of one round trip to the server."""
        begun = time.perf_counter()
        await self._run(looking.ping())
        return time.perf_counter() - begun

    async def _stream(self, job_id: str, after: int, timeout: float | None) -> AsyncIterator[Event]:
        plan = self._follower(job_id).stream(after, timeout)
        bell = AsyncBell(self._link, self._timeout_s)
        try:
            while (event := await self._event(plan, bell)) is not None:
                yield event
        finally:
            plan.close()
            await bell.close()

    async def _result(self, job_id: str, timeout: float | None) -> Outcome:
        bell = AsyncBell(self._link, self._timeout_s)
        try:
            return await self._run(self._follower(job_id).result(timeout), bell)
        finally:
            await bell.close()

    def _follower(self, job_id: str) -> JobFollower:
        return JobFollower(job_id, self._timeout_s, time.monotonic)

    async def _event(self, plan: Following[None], bell: AsyncBell) -> Event | None:
        """The next event a plan gives out; None at its end."""
        return cast("Event | None", await self._run(cast("Following[object]", plan), bell))

    async def _run(self, plan: Asking[T] | Following[T], bell: AsyncBell | None = None) -> T:
        """Perform a plan to its end, or up to the next event it gives out, which is returned instead."""
        running = cast("Following[T]", plan)
        try:
            step = running.send(None)
            while not isinstance(step, Event):
                try:
                    answer = await self._perform(step, bell)
                except QueueUnavailableError as error:
                    step = running.throw(error)
                else:
                    step = running.send(answer)
        except StopIteration as stop:
            return cast("T", stop.value)
        return cast("T", step)

    async def _perform(self, step: Step, bell: AsyncBell | None) -> object:
        if isinstance(step, Ask):
            return await self._link.ask(step.commands)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        elif bell is None:
            raise InternalError("a plan that listens was run without a bell")
        elif isinstance(step, Listen):
            return await bell.hear(step.seconds)
        elif isinstance(step, Subscribe):
            await bell.open(step.channel)
        else:
            await bell.close()
        return None
