"""Runs one claimed job from payload to outcome, in the thread of its slot; whatever it raises ends that job alone."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from redis.exceptions import RedisError

from ccs_broker.contract import Outcome, Usage
from ccs_broker.errors import CcsError, EngineLostError, InternalError, LeaseLostError, OutOfMemoryError
from ccs_broker.ledger import Ending
from ccs_broker.ledger.faults import fault_word, is_transient
from ccs_broker.transport.message import has_links
from ccs_workers.engines.host import describe
from ccs_workers.engines.protocol import Done, Failed
from ccs_workers.executor.gate import Company
from ccs_workers.executor.history import read_history
from ccs_workers.executor.outcomes import (
    AttemptEnd,
    OutcomeMaker,
    Quarantined,
    celery_result,
    celery_state,
    event_data,
    with_device_time,
)
from ccs_workers.executor.workload import engine_job, job_of, seed_of
from ccs_workers.publish.patience import GIVE_UP_AFTER_S, OUTAGE, Patience
from ccs_workers.publish.run import JobRun, Lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_broker.contract import Job
    from ccs_broker.ledger import Claim, Ledger
    from ccs_broker.transport import ClaimTable
    from ccs_workers.executor.gate import Turn
    from ccs_workers.executor.handle import EngineHandle
    from ccs_workers.executor.pool import EnginePool
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.publish.publisher import Publisher
    from ccs_workers.scheduling.accounts import Accounts

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds between looks at a running job's limits.
WATCH_EVERY_S: Final = 0.5
#: Seconds an engine has to stop a job before its process is replaced.
STOP_GRACE_S: Final = 5.0
#: Crashes without progress after which a job is let in as a suspect, one at a time; after which it runs alone, since
#: the suspect that was let in last is most likely the one; and crashes alone after which it is quarantined.
CRASHES_UNTIL_WATCHED: Final = 2
CRASHES_UNTIL_ALONE: Final = 3
CRASHES_ALONE: Final = 3
#: By what the expected memory of a model's jobs grows when one of them ran out of it.
_INFLATE: Final = 1.25

#: Reasons to stop after which another attempt goes on with the job, and what is said of them.
_HANDED_BACK: Final = MappingProxyType(
    {
        "drain": "the worker shuts down",
        "preempted": "a more urgent job needs its place",
        "memory": "the memory it needs isn't free",
        "switch": "its model makes room for another one",
    }
)


class Runner:
    """One per worker; :meth:`run` is called from any number of threads."""

    def __init__(
        self,
        ledger: Ledger,
        claims: ClaimTable,
        engines: EnginePool,
        publisher: Publisher,
        accounts: Accounts,
        *,
        worker: str,
    ) -> None:
        self._accounts = accounts
        self._ledger = ledger
        self._claims = claims
        self._engines = engines
        self._publisher = publisher
        self._worker = worker

    def run(self, claim: Claim) -> Outcome:
        """Run a claimed job and write its outcome.

        Raises:
            LeaseLostError: the job isn't this attempt's any more, or was handed back; nothing is to follow.
        """
        if claim.links:
            # It has its outcome already; only what follows it in Celery is left.
            outcome = Outcome.model_validate_json(claim.payload)
            word = celery_state(outcome, goes_on=claim.goes_on)
            self._claims.mark_finished((claim.id, claim.attempt), links=word)
            return outcome
        run = JobRun(claim)
        self._accounts.open(run)
        try:
            outcome = self._outcome(claim, run)
        finally:
            self._accounts.close(run)
        return outcome

    def _outcome(self, claim: Claim, run: JobRun) -> Outcome:
        maker = OutcomeMaker(run=run, worker=self._worker)
        job = None
        try:
            job = job_of(claim)
            outcome = self._attempt(claim, job, run)
        except LeaseLostError:
            raise
        except CcsError as error:
            outcome = maker.failed(error)
        except BaseException as error:  # noqa: BLE001 - loop edge: MemoryError or SystemExit must end this job alone
            logger.error("job %s failed in the worker: %s", claim.id, describe(error))
            outcome = maker.failed(InternalError(f"the worker raised {type(error).__name__}"))
        if run.state == "lost":
            raise LeaseLostError(f"attempt {claim.attempt} no longer holds the job")
        used_s = self._accounts.close(run).device_s + run.earlier_device_s
        outcome = with_device_time(outcome, used_s)
        self._finish(claim, outcome, used_s)
        if job is not None:
            self._accounts.learn(run, job, outcome)
        return outcome

    def _attempt(self, claim: Claim, job: Job, run: JobRun) -> Outcome:
        spec = self._engines.spec_for(job)
        if claim.attempt > 1:
            run.restore(*self._persist(lambda: read_history(self._ledger.redis, claim.id)))
        self._claims.watch((claim.id, claim.attempt), run.notice)
        self._publisher.register(run)
        try:
            end = self._rounds(job, run, spec)
        finally:
            self._publisher.forget(run)
        self._accounts.close(run, end)
        if run.state in _HANDED_BACK and (isinstance(end, Lost) or _is_cancelled(end)):
            self._hand_back(run)
        if _is_out_of_memory(end):
            reserved = self._engines.memory.reserved_bytes((run.job_id, run.attempt))
            end = replace(end, message=f"{end.message} ({reserved or 0} bytes were reserved for it)")
        drawn = {"seed": seed_of(job)} if job.sampling.temperature > 0 else {}
        return OutcomeMaker(run=run, worker=self._worker, model=spec.alias).of(end, drawn)

    def _rounds(self, job: Job, run: JobRun, spec: ModelSpec) -> AttemptEnd:
        """Run in one turn after another until one gives an end, or the job has proven to be poison."""
        gate, company = self._engines.gate(spec.alias), Company.SHARED
        while True:
            with gate.enter(company, make_way=run.make_way, stopped=lambda: run.state != "ok") as turn:
                if turn is None:
                    return Lost("stopped while it waited for its turn")
                found = self._turn(job, run, spec, turn)
            if not isinstance(found, Company):
                return found
            company = found

    def _turn(self, job: Job, run: JobRun, spec: ModelSpec, turn: Turn) -> AttemptEnd | Company:
        """Run on one engine process, or on some if alone; the end, or the company in which to come again."""
        while True:
            end = self._on_engine(job, run, spec, turn)
            memory = self._lacked_memory(run, spec, end)
            if run.state != "ok" or not (
                memory or isinstance(end, Lost) or (run.making_way and _is_cancelled(end))
            ):
                return end
            company = Company.ALONE if memory else turn.company
            if isinstance(end, Lost):
                verdict = self._crashed(run, end, alone=company is Company.ALONE)
                if not isinstance(verdict, Company):
                    return verdict
                company = verdict
            self._publisher.forget(run)
            run.again()
            self._publisher.register(run)
            if isinstance(end, Lost):
                self._publisher.resumed(run, "the engine died")
            elif memory:
                self._publisher.resumed(run, "the device's memory was full")
            if not company is turn.company is Company.ALONE:
                return company

    def _lacked_memory(self, run: JobRun, spec: ModelSpec, end: AttemptEnd) -> bool:
        """Whether a job failed for memory that was granted, for the first time: it is to be tried again, alone."""
        if not _is_out_of_memory(end) or run.out_of_memory:
            return False
        run.out_of_memory = True
        self._engines.memory.inflate(spec.serving.alias, _INFLATE)
        logger.warning("job %s ran out of memory: it is tried again alone", run.job_id)
        return True

    def _crashed(self, run: JobRun, end: Lost, *, alone: bool) -> AttemptEnd | Company:
        """Count the engine's death; the company in which the job may run again, or its end."""
        crashes, alone_crashes = self._persist(
            partial(self._ledger.crash, run.job_id, run.attempt, run.outputs, death=run.rounds, alone=alone)
        )
        if crashes < 0:
            run.notice("lost")
            return end
        if alone_crashes >= CRASHES_ALONE:
            return Quarantined(f"the engine died {alone_crashes} times with this job alone ({end.reason})")
        logger.warning("job %s goes on after its engine died (%s)", run.job_id, end.reason)
        if crashes >= CRASHES_UNTIL_ALONE:
            return Company.ALONE
        return Company.WATCHED if crashes >= CRASHES_UNTIL_WATCHED else Company.SHARED

    def _on_engine(self, job: Job, run: JobRun, spec: ModelSpec, turn: Turn) -> AttemptEnd:
        try:
            engine = self._engines.get(spec)
        except EngineLostError as error:
            return Lost(error.message)
        self._engines.attach(engine, run)
        try:
            if run.making_way:
                return Done(finish_reason="cancelled", usage=Usage())
            if turn.company is not Company.SHARED:
                run.on_output(turn.prove)
            self._submit(job, run, engine)
            run.on_stop(partial(engine.cancel, run.key))
            return self._wait(job, run, engine.kill)
        except EngineLostError as error:
            return Lost(error.message)
        finally:
            self._engines.detach(engine, run)

    def _submit(self, job: Job, run: JobRun, engine: EngineHandle) -> None:
        """Fetch a job's media and pass them on: only the engine holds them while the job runs."""
        work = self._persist(lambda: engine_job(self._ledger.redis, job, run.key))
        granted = self._engines.memory.reserved_bytes((run.job_id, run.attempt))
        score, floor = run.claim.score, run.claim.floor
        engine.submit(replace(work, score=score, floor=floor, resume=run.resume(), memory_bytes=granted))

    @staticmethod
    def _wait(job: Job, run: JobRun, kill: Callable[[], None]) -> AttemptEnd:
        """Wait for the engine, which has a time limit, and another one to obey when it must stop."""
        overrun_at = time.monotonic() + job.max_runtime_s if job.max_runtime_s else None
        kill_at: float | None = None
        while True:
            wait_s = (
                WATCH_EVERY_S if overrun_at is None else min(WATCH_EVERY_S, overrun_at - time.monotonic())
            )
            end = run.wait(max(0.01, wait_s))
            if end is not None:
                return end
            now = time.monotonic()
            if overrun_at is not None and now >= overrun_at:
                overrun_at = None
                run.notice("overrun")
            # One that makes way for a more urgent job may take its time: its engine works for others too.
            if run.state not in {"ok", "preempted", "switch"} and kill_at is None:
                kill_at = now + STOP_GRACE_S
            if kill_at is not None and now >= kill_at:
                logger.error(
                    "job %s didn't stop within %.0f s: its engine is replaced", run.job_id, STOP_GRACE_S
                )
                kill()
                # What it had said before is still being written; the end comes behind that.
                return run.wait(GIVE_UP_AFTER_S) or Lost("replaced because a step hung")

    def _hand_back(self, run: JobRun) -> None:
        """Give the job to whoever claims it next; it goes on behind what it has logged."""
        data = json.dumps({"reason": run.state, "device_s": round(self._accounts.close(run).device_s, 6)})
        self._persist(lambda: self._ledger.release(run.job_id, run.attempt, data))
        raise LeaseLostError(f"handed back: {_HANDED_BACK[run.state]}")

    def _finish(self, claim: Claim, outcome: Outcome, device_s: float) -> None:
        ending = Ending(
            state=outcome.state,
            outcome=outcome.model_dump_json(exclude_defaults=True, exclude={"timings"}),
            event_data=event_data(outcome),
            celery=celery_result(claim.id, outcome, goes_on=claim.goes_on) if claim.message else "",
            links=has_links(claim.message),
            actual_us=round(device_s * 1e6),
        )
        if not self._persist(lambda: self._ledger.finish(claim.id, claim.attempt, ending)):
            raise LeaseLostError(f"attempt {claim.attempt} no longer holds the job")
        word = celery_state(outcome, goes_on=claim.goes_on) if ending.links else ""
        self._claims.mark_finished((claim.id, claim.attempt), links=word)

    @staticmethod
    def _persist(call: Callable[[], T]) -> T:
        """Call again and again while the server is away; every call here is safe to repeat.

        Raises:
            LeaseLostError: it stayed away; the job is another worker's once it is back.
            InternalError: it refuses, and would again.
        """
        patience = Patience()
        while True:
            try:
                found = call()
                OUTAGE.over()
                return found
            except (RedisError, OSError) as error:
                if not is_transient(error):
                    logger.error("the server refuses what a job needs (%s)", fault_word(error))
                    raise InternalError(
                        f"the server refuses what the job needs ({fault_word(error)})"
                    ) from None
                if not patience.wait():
                    logger.error("gave up on the server: it stayed away")
                    raise LeaseLostError("the server stayed away") from error


def _is_out_of_memory(end: AttemptEnd) -> TypeGuard[Failed]:
    return isinstance(end, Failed) and end.code == OutOfMemoryError.code


def _is_cancelled(end: AttemptEnd) -> bool:
    """Whether the engine stopped the job because it was told to."""
    return isinstance(end, Done) and end.finish_reason == "cancelled"
