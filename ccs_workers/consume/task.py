"""The one Celery task: ``ccs.run`` takes the claim its delivery stands for and runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore

from ccs_broker.errors import InternalError, JobFailedError, LeaseLostError
from ccs_broker.transport import ATTEMPT_HEADER, CLAIMS, RUN_TASK

if TYPE_CHECKING:
    from celery import Celery

    from ccs_broker.contract import Outcome
    from ccs_workers.executor.runner import Runner


class RunResult:
    """A job's outcome on its way through Celery: JSON for what follows in a canvas, mute in logs and events."""

    def __init__(self, job_id: str, outcome: Outcome) -> None:
        self._id = job_id
        self._outcome = outcome

    def __json__(self) -> dict[str, Any]:
        fields: dict[str, Any] = self._outcome.model_dump(
            mode="json", exclude_defaults=True, exclude={"timings"}
        )
        return {"job": self._id, **fields}

    def __repr__(self) -> str:
        usage = self._outcome.usage
        return f"<{self._outcome.state.value}: {usage.completion_tokens} tokens, model {self._outcome.model}>"


class ContainedTask(Task):
    """Base of every task on our workers: what ends a process elsewhere ends only the task here."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task's body.

        Raises:
            InternalError: the body raised MemoryError, SystemExit or KeyboardInterrupt; in a thread of the pool
                Celery would leave the slot occupied for ever.
        """
        try:
            return super().__call__(*args, **kwargs)
        except (MemoryError, SystemExit, KeyboardInterrupt) as error:
            raise InternalError(f"the task raised {type(error).__name__}") from None


class RunTask(ContainedTask):
    """Base of ``ccs.run``: notes when Celery has done what follows a job."""

    abstract = True
    Request = "ccs_workers.consume.request:RunRequest"

    def after_return(self, status: str, retval: Any, task_id: str, *_: Any) -> None:
        """Called by Celery after links, chain and chord, and only if none of them raised."""
        CLAIMS.mark_linked((task_id, int(self.request.get(ATTEMPT_HEADER) or 0)), status)


class RunnerSlot:
    """Where the task finds the runner: empty until the worker's engines are there."""

    def __init__(self) -> None:
        self.runner: Runner | None = None


def register_run(app: Celery, slot: RunnerSlot) -> None:
    """Add ``ccs.run`` to an app."""

    @app.task(
        name=RUN_TASK,
        # Celery would add it to every other app of the process.
        shared=False,
        bind=True,
        base=RunTask,
        acks_late=True,
        # The finish script stores Celery's result, fenced by the attempt; Celery's own write isn't.
        ignore_result=True,
        throws=(JobFailedError,),
    )
    def run(self: Any, *_args: Any, **_kwargs: Any) -> RunResult:
        claim = CLAIMS.begin((self.request.id, int(self.request.get(ATTEMPT_HEADER) or 0)))
        if claim is None or slot.runner is None:
            # Handed back while it waited for its thread, or not one of our deliveries.
            raise Ignore
        try:
            outcome = slot.runner.run(claim)
        except LeaseLostError:
            CLAIMS.hand_back((claim.id, claim.attempt))
            raise Ignore from None
        if not (outcome.ok or claim.goes_on):
            error = outcome.error
            raise JobFailedError(f"{error.code}: {error.message}" if error else outcome.state.value)
        return RunResult(claim.id, outcome)
