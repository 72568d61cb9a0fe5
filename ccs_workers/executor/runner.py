"""Runs one claimed job from payload to outcome, in the thread of its slot; whatever it raises ends that job alone."""

from __future__ import annotations

import json
import logging
import secrets
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError
from redis.exceptions import RedisError

from ccs_broker.contract import ErrorInfo, Job, Outcome, OutcomeState
from ccs_broker.contract.wire import invalid_input
from ccs_broker.errors import (
    CcsError,
    DeadlineExceededError,
    EngineLostError,
    InternalError,
    InvalidInputError,
    LeaseLostError,
    error_for_code,
)
from ccs_broker.ledger import Ending
from ccs_workers.engines.host import describe
from ccs_workers.engines.protocol import Done, EngineJob, Failed
from ccs_workers.executor.media import fetch_media
from ccs_workers.publish.run import JobRun, Lost, RunEnd

if TYPE_CHECKING:
    from ccs_broker.ledger import Claim, Ledger
    from ccs_broker.transport import ClaimTable
    from ccs_workers.executor.pool import EnginePool
    from ccs_workers.publish.publisher import Publisher

logger = logging.getLogger(__name__)

#: Seconds between tries to write an outcome while the server is away, and how long to go on.
FINISH_EVERY_S: Final = 0.5
FINISH_GIVE_UP_S: Final = 300.0


class Runner:
    """One per worker; :meth:`run` is called from any number of threads."""

    def __init__(
        self, ledger: Ledger, claims: ClaimTable, engines: EnginePool, publisher: Publisher, worker: str
    ) -> None:
        self._ledger = ledger
        self._claims = claims
        self._engines = engines
        self._publisher = publisher
        self._worker = worker

    def run(self, claim: Claim) -> Outcome:
        """Run a claimed job and write its outcome.

        Raises:
            LeaseLostError: another attempt holds the job now; nothing was written for this one.
        """
        run = JobRun(claim)
        try:
            outcome = self._attempt(claim, run)
        except CcsError as error:
            outcome = self._failed(run, error)
        except BaseException as error:  # noqa: BLE001 - loop edge: MemoryError or SystemExit must end this job alone
            logger.error("job %s failed in the worker: %s", claim.id, describe(error))
            outcome = self._failed(run, InternalError(f"the worker raised {type(error).__name__}"))
        if run.state == "lost":
            raise LeaseLostError(f"attempt {claim.attempt} no longer holds the job")
        self._finish(claim, outcome)
        return outcome

    def _attempt(self, claim: Claim, run: JobRun) -> Outcome:
        job = _job_of(claim)
        spec = self._engines.spec_for(job)
        images, audio = fetch_media(self._ledger.redis, job)
        seed = job.sampling.seed if job.sampling.seed is not None else secrets.randbits(63)
        engine = self._engines.get(spec)
        self._claims.watch((claim.id, claim.attempt), run.notice)
        self._publisher.register(run)
        self._engines.attach(spec.alias, run)
        try:
            engine.submit(
                EngineJob(
                    key=run.key,
                    prompt=job.prompt,
                    sampling=job.sampling,
                    seed=seed,
                    images=images,
                    audio=audio,
                )
            )
            run.on_stop(lambda: engine.cancel(run.key))
            end = run.wait()
        finally:
            self._engines.detach(spec.alias, run)
            self._publisher.forget(run)
        drawn = {"seed": seed} if job.sampling.temperature > 0 else {}
        return self._outcome(run, end, spec.alias, drawn)

    def _outcome(self, run: JobRun, end: RunEnd | None, model: str, drawn: dict[str, int]) -> Outcome:
        match end:
            case Done(finish_reason="cancelled"):
                return self._stopped(run, end, model)
            case Done():
                return Outcome(
                    state=OutcomeState.SUCCEEDED,
                    text=run.text,
                    usage=end.usage,
                    attempts=run.attempt,
                    model=model,
                    worker=self._worker,
                    finish_reason=end.finish_reason,
                    data={**end.data, **drawn},
                )
            case Failed():
                return self._failed(run, error_for_code(end.code, end.message), model)
            case Lost():
                error = EngineLostError(f"the engine of {model!r} died while the job ran ({end.reason})")
                return self._failed(run, error, model)
            case None:
                return self._failed(
                    run, InternalError("the wait for the engine ended without an answer"), model
                )

    def _stopped(self, run: JobRun, end: Done, model: str) -> Outcome:
        """The engine stopped because the ledger asked for it: cancelled, or out of time."""
        expired = run.state == "expired"
        error = (
            ErrorInfo.of(DeadlineExceededError("the deadline passed while the job ran")) if expired else None
        )
        return Outcome(
            state=OutcomeState.EXPIRED if expired else OutcomeState.CANCELLED,
            text=run.text,
            error=error,
            usage=end.usage,
            attempts=run.attempt,
            model=model,
            worker=self._worker,
            finish_reason=end.finish_reason,
        )

    def _failed(self, run: JobRun, error: CcsError, model: str | None = None) -> Outcome:
        return Outcome(
            state=OutcomeState.FAILED,
            text=run.text,
            error=ErrorInfo.of(error),
            attempts=run.attempt,
            model=model,
            worker=self._worker,
        )

    def _finish(self, claim: Claim, outcome: Outcome) -> None:
        """Write the outcome, again and again while the server is away; the script knows a repetition."""
        ending = Ending(
            state=outcome.state,
            outcome=outcome.model_dump_json(exclude_defaults=True, exclude={"timings"}),
            event_data=_event_data(outcome),
            celery=celery_result(claim.id, outcome) if claim.message else "",
        )
        give_up = time.monotonic() + FINISH_GIVE_UP_S
        while True:
            try:
                held = self._ledger.finish(claim.id, claim.attempt, ending)
                break
            except (RedisError, OSError) as error:
                if time.monotonic() > give_up:
                    logger.error("gave up writing the outcome of job %s: the server stayed away", claim.id)
                    raise LeaseLostError("the outcome could not be written") from error
                time.sleep(FINISH_EVERY_S)
        if not held:
            raise LeaseLostError(f"attempt {claim.attempt} no longer holds the job")
        self._claims.mark_finished((claim.id, claim.attempt))


def _job_of(claim: Claim) -> Job:
    """The job a claim carries, validated again on this side.

    Raises:
        CcsError: it isn't valid, or intake found it invalid already.
    """
    try:
        fields = json.loads(claim.payload)
        refused = fields.get("invalid")
        if refused:
            raise error_for_code(str(refused["code"]), str(refused["message"]))
        return Job.model_validate(fields)
    except ValidationError as error:
        raise invalid_input(error) from None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise InvalidInputError("the job's payload can't be read") from None


def _event_data(outcome: Outcome) -> str:
    """Data of the terminal event: what a subscriber wants to know without a second question."""
    data: dict[str, object] = {"usage": outcome.usage.model_dump(exclude_defaults=True)}
    if outcome.error is not None:
        data |= outcome.error.model_dump()
    if outcome.finish_reason is not None:
        data["finish_reason"] = outcome.finish_reason
    return json.dumps(data, allow_nan=False)


def celery_result(job_id: str, outcome: Outcome) -> str:
    """The outcome as Celery's result backend stores results, for producers that wait on an ``AsyncResult``."""
    if outcome.ok:
        status, result = (
            "SUCCESS",
            outcome.model_dump(mode="json", exclude_defaults=True, exclude={"timings"}),
        )
    elif outcome.state in {OutcomeState.CANCELLED, OutcomeState.EXPIRED}:
        status, result = "REVOKED", _exception("TaskRevokedError", "celery.exceptions", outcome.state.value)
    else:
        message = f"{outcome.error.code}: {outcome.error.message}" if outcome.error else outcome.state.value
        status, result = "FAILURE", _exception("JobFailedError", "ccs_broker.errors", message)
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
