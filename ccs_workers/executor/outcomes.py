"""From an attempt's end to its outcome, the data of its terminal event and Celery's result; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ccs_broker.contract import ErrorInfo, Outcome, OutcomeState, Usage
from ccs_broker.errors import (
    CcsError,
    DeadlineExceededError,
    EngineLostError,
    InternalError,
    RuntimeExceededError,
    error_for_code,
)
from ccs_workers.engines.protocol import Done, Failed
from ccs_workers.publish.run import JobRun, Lost, StopReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The attempt ended because the job kills whatever runs it; ``reason`` says how it did."""

    reason: str


AttemptEnd = Done | Failed | Lost | Quarantined

_EXPIRED: Final[Mapping[StopReason, CcsError]] = {
    "expired": DeadlineExceededError("the deadline passed while the job ran"),
    "overrun": RuntimeExceededError("the job ran longer than its max_runtime_s allows"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeMaker:
    """What is the same for every outcome of one attempt."""

    run: JobRun
    worker: str
    model: str | None = None

    def of(self, end: AttemptEnd, drawn: Mapping[str, JsonValue]) -> Outcome:
        """The outcome for an end; ``drawn`` is what the worker chose for the job, such as its seed."""
        stopped = isinstance(end, Lost) or (isinstance(end, Done) and end.finish_reason == "cancelled")
        if stopped and self.run.state in {"cancelling", "expired", "overrun"}:
            return self._stopped(end.usage if isinstance(end, Done) else Usage())
        match end:
            case Done(finish_reason="cancelled"):
                return self.failed(InternalError("the engine stopped without being asked to"))
            case Done():
                return self._outcome(
                    OutcomeState.SUCCEEDED,
                    usage=end.usage,
                    finish_reason=end.finish_reason,
                    data={**end.data, **drawn},
                )
            case Failed():
                return self.failed(error_for_code(end.code, end.message))
            case Lost():
                return self.failed(EngineLostError(f"the engine of {self.model!r} died ({end.reason})"))
            case Quarantined():
                error = ErrorInfo(code=EngineLostError.code, message=end.reason, retryable=False)
                return self._outcome(OutcomeState.QUARANTINED, error=error)

    def failed(self, error: CcsError) -> Outcome:
        """The outcome of an attempt that failed."""
        return self._outcome(OutcomeState.FAILED, error=ErrorInfo.of(error))

    def _stopped(self, usage: Usage) -> Outcome:
        error = _EXPIRED.get(self.run.state)
        return self._outcome(
            OutcomeState.EXPIRED if error else OutcomeState.CANCELLED,
            usage=usage,
            finish_reason="cancelled",
            error=ErrorInfo.of(error) if error else None,
        )

    def _outcome(
        self,
        state: OutcomeState,
        *,
        usage: Usage | None = None,
        finish_reason: str | None = None,
        error: ErrorInfo | None = None,
        data: Mapping[str, JsonValue] | None = None,
    ) -> Outcome:
        return Outcome(
            state=state,
            text=self.run.text,
            error=error,
            usage=usage or Usage(),
            attempts=self.run.attempt,
            model=self.model,
            worker=self.worker,
            finish_reason=finish_reason,
            data=dict(data or {}),
        )


def with_device_time(outcome: Outcome, device_s: float) -> Outcome:
    """The outcome, whose usage tells the device time of all attempts."""
    usage = outcome.usage.model_copy(update={"device_s": round(device_s, 6)})
    return outcome.model_copy(update={"usage": usage})


def event_data(outcome: Outcome) -> str:
    """Data of the terminal event as JSON: what a subscriber wants to know without a second question."""
    data: dict[str, object] = {"usage": outcome.usage.model_dump(exclude_defaults=True)}
    if outcome.error is not None:
        data |= outcome.error.model_dump()
    if outcome.state is not OutcomeState.SUCCEEDED:
        data["stage"] = "running"
    if outcome.finish_reason is not None:
        data["finish_reason"] = outcome.finish_reason
    return json.dumps(data, allow_nan=False)


def celery_state(outcome: Outcome, *, goes_on: bool) -> str:
    """State with which Celery ends the task of a job with this outcome: anything but success is raised there.

    ``goes_on``: what follows it does however it ended.
    """
    return "SUCCESS" if outcome.ok or goes_on else "FAILURE"


def celery_result(job_id: str, outcome: Outcome, *, goes_on: bool = False) -> str:
    """The outcome as Celery's result backend stores results, for producers that wait on an ``AsyncResult``."""
    result: object
    if outcome.ok or goes_on:
        status = "SUCCESS"
        result = outcome.model_dump(mode="json", exclude_defaults=True, exclude={"timings"})
    elif outcome.state in {OutcomeState.CANCELLED, OutcomeState.EXPIRED}:
        status = "REVOKED"
        result = _exception("TaskRevokedError", "celery.exceptions", outcome.state.value)
    else:
        status = "FAILURE"
        message = f"{outcome.error.code}: {outcome.error.message}" if outcome.error else outcome.state.value
        result = _exception("JobFailedError", "ccs_broker.errors", message)
    meta: dict[str, object] = {
        "status": status,
        "result": result,
        "traceback": None,
        "children": [],
        "date_done": datetime.now(UTC).isoformat(),
        "task_id": job_id,
    }
    return json.dumps(meta, allow_nan=False)


def _exception(name: str, module: str, message: str) -> dict[str, object]:
    return {"exc_type": name, "exc_message": [message], "exc_module": module}
