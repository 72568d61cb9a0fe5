"""The synchronous client: performs the plans of the core on blocking sockets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, Self, TypeVar, Unpack, cast, overload

from ccs_broker.client import changing, dead, looking
from ccs_broker.client.core import BulkJob, ClientCore, SubmitOptions, bulk_answer, checked_id
from ccs_broker.client.following import JobFollower
from ccs_broker.client.fusion import composed, extras_of, is_answered_by_a_model, wants_a_plan
from ccs_broker.client.handles import JobHandle
from ccs_broker.client.link import Bell, Link
from ccs_broker.client.pipeline import Pipeline
from ccs_broker.client.planning import PlanMaker
from ccs_broker.client.sender import CanvasSender
from ccs_broker.client.steps import Ask, Listen, Pause, Subscribe
from ccs_broker.contract.event import Event
from ccs_broker.contract.limits import DEFAULT_LIMITS, Limits
from ccs_broker.errors import CcsError, InternalError, QueueUnavailableError
from ccs_broker.settings import BrokerSettings, LedgerSettings, ledger_settings, require_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from ccs_broker.client import records
    from ccs_broker.client.planning import PipelineOptions
    from ccs_broker.client.steps import Asking, Following, Step
    from ccs_broker.contract.outcome import Outcome
    from ccs_broker.contract.words import Modality

T = TypeVar("T")


class Client:
    """Submits jobs to a server and follows them; may be shared between threads and survives a fork.

    Args:
        url: where the server is; else ``CCS_REDIS_URL``.
        timeout_s: seconds over connect, write and reply after which a call gives up (more for large uploads).
        limits: sizes beyond which a job is refused before anything is sent.
        ledger: times of the ledger, where they differ from the defaults.
    """

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
        self._link = Link(settings)
        self._core = ClientCore(settings.ledger, limits)
        self._sender = CanvasSender(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; streams that are open end when they are dropped."""
        self._link.close()
        self._sender.close()

    def submit(self, modality: Modality | str, **options: Unpack[SubmitOptions]) -> JobHandle:
        """Submit one job in one round trip; see :class:`SubmitOptions` for what it may say.

        A fusion job that names no model, while none is served that takes such jobs, becomes a pipeline, and its outcome
        says so in ``data["plan"]``.

        Raises:
            InvalidInputError: the job is wrong or over a limit; nothing was sent.
            ConflictError: the idempotency key was used with another body.
            NoSuitableWorkerError: workers serve the modality, none of them the model.
            QueueUnavailableError: the server did not take it; ``maybe_accepted`` says if it may have.
        """
        submission = self._core.prepare(modality, options)
        if wants_a_plan(modality, options) and not self._run(is_answered_by_a_model()):
            maker = composed(submission, self._core.limits)
            return Pipeline(self, maker).submit(extras_of(submission, maker))
        return JobHandle(self, self._run(self._core.submit(submission)))

    @overload
    def submit_many(
        self, jobs: Iterable[BulkJob], *, return_errors: Literal[False] = False
    ) -> list[JobHandle]: ...

    @overload
    def submit_many(
        self, jobs: Iterable[BulkJob], *, return_errors: Literal[True]
    ) -> list[JobHandle | CcsError]: ...

    def submit_many(
        self, jobs: Iterable[BulkJob], *, return_errors: bool = False
    ) -> list[JobHandle] | list[JobHandle | CcsError]:
        """Submit many jobs, some hundred in one round trip; handles come in the order of the jobs.

        All are validated before the first is sent. If the server refuses some, the others are submitted all
        the same; then the first refusal is raised, or with ``return_errors`` each stands in its job's place.
        """
        submissions = self._core.prepare_many(jobs)
        found = self._run(self._core.submit_many(submissions))
        return bulk_answer(found, lambda job_id: JobHandle(self, job_id), return_errors=return_errors)

    def job(self, job_id: str) -> JobHandle:
        """Attach to a job by its id, from any process; asks the server nothing.

        Raises:
            InvalidInputError: no job can have such an id.
        """
        return JobHandle(self, checked_id(job_id))

    def pipeline(self, **options: Unpack[PipelineOptions]) -> Pipeline:
        """Begin a pipeline: several jobs, of any modalities, with one id, one stream and one deadline.

        Nothing is sent before its ``submit``; see :class:`ccs_broker.client.pipeline.Pipeline`.

        Raises:
            InvalidInputError: an option is unknown or wrong.
        """
        return Pipeline(self, PlanMaker(options, self._core.limits))

    def queues(self) -> records.QueueReport:
        """Depth of every queue."""
        return self._run(looking.queues())

    def workers(self) -> tuple[records.WorkerInfo, ...]:
        """The workers that count as alive, and what each reported last."""
        return self._run(looking.workers())

    def tenants(self) -> tuple[records.TenantShare, ...]:
        """Tenants that have jobs waiting or a weight of their own."""
        return self._run(changing.tenants())

    def set_weight(self, tenant: str, weight: float) -> None:
        """Set a tenant's weight in the device time of each class; 1 is the usual one.

        Raises:
            InvalidInputError: the name or the weight is wrong.
        """
        self._run(changing.set_weight(self._core, tenant, weight))

    def dead(self, limit: int = dead.DEFAULT_LIMIT) -> records.DeadReport:
        """The newest quarantined jobs and dead letters, at most ``limit`` of each; never a prompt."""
        return self._run(dead.listed(limit))

    def dead_job(self, job_id: str, *, raw: bool = False) -> records.DeadJobDetails:
        """One quarantined job, with its payload if ``raw``; ``NotFoundError`` if it isn't one, or was purged."""
        return self._run(dead.job_details(job_id, raw=raw))

    def dead_letter(self, index: int, *, raw: bool = False) -> records.DeadLetterDetails:
        """One dead letter, with the bytes kept of it if ``raw``; ``NotFoundError`` if there is none."""
        return self._run(dead.letter_details(index, raw=raw))

    def replay(self, job_id: str) -> JobHandle:
        """Submit a quarantined job's payload as a new job, which gets a new deadline; the old one stays as it ended.

        Repeated, it gives the same new job. Celery's result and canvas belong to the old one: nothing follows.

        Raises:
            InvalidInputError: a dead letter was named, or the job was refused when it came in.
            NotFoundError: the job isn't quarantined, or its payload or a medium is gone.
            NoSuitableWorkerError: workers serve the modality, none of them the model.
        """
        return JobHandle(self, self._run(dead.replay(self._core, job_id)))

    def purge(
        self,
        jobs: Iterable[str] | Literal["all"] = (),
        letters: Iterable[int] | Literal["all"] = (),
    ) -> records.Purged:
        """Drop what quarantined jobs keep for a replay, and dead letters by index; ``"all"`` drops all.

        What isn't there is left out of the counts. Outcomes stay readable for their time.
        """
        return self._run(dead.purge(self._core, jobs, letters))

    def ping(self) -> float:
        """Seconds of one round trip to the server."""
        begun = time.perf_counter()
        self._run(looking.ping())
        return time.perf_counter() - begun

    def _stream(self, job_id: str, after: int, timeout: float | None) -> Iterator[Event]:
        plan = self._follower(job_id).stream(after, timeout)
        bell = Bell(self._link, self._timeout_s)
        try:
            while (event := self._event(plan, bell)) is not None:
                yield event
        finally:
            plan.close()
            bell.close()

    def _result(self, job_id: str, timeout: float | None) -> Outcome:
        bell = Bell(self._link, self._timeout_s)
        try:
            return self._run(self._follower(job_id).result(timeout), bell)
        finally:
            bell.close()

    def _follower(self, job_id: str) -> JobFollower:
        return JobFollower(job_id, self._timeout_s, time.monotonic)

    def _event(self, plan: Following[None], bell: Bell) -> Event | None:
        """The next event a plan gives out; None at its end."""
        return cast("Event | None", self._run(cast("Following[object]", plan), bell))

    def _run(self, plan: Asking[T] | Following[T], bell: Bell | None = None) -> T:
        """Perform a plan to its end, or up to the next event it gives out, which is returned instead."""
        running = cast("Following[T]", plan)
        try:
            step = running.send(None)
            while not isinstance(step, Event):
                try:
                    answer = self._perform(step, bell)
                except QueueUnavailableError as error:
                    step = running.throw(error)
                else:
                    step = running.send(answer)
        except StopIteration as stop:
            return cast("T", stop.value)
        return cast("T", step)

    def _perform(self, step: Step, bell: Bell | None) -> object:
        if isinstance(step, Ask):
            return self._link.ask(step.commands)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
        elif bell is None:
            raise InternalError("a plan that listens was run without a bell")
        elif isinstance(step, Listen):
            return bell.hear(step.seconds)
        elif isinstance(step, Subscribe):
            bell.open(step.channel)
        else:
            bell.close()
        return None
