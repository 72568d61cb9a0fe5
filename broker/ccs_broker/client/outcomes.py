"""A job's record as the scripts keep it: its ends, its times, and the outcome put together from both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pydantic import ValidationError
from pydantic_core import from_json

from ccs_broker import topology
from ccs_broker.client.faults import checked
from ccs_broker.client.records import JobState
from ccs_broker.client.steps import Ask
from ccs_broker.contract.event import EventKind
from ccs_broker.contract.outcome import Outcome, Timings
from ccs_broker.errors import InternalError
from ccs_broker.streams.records import log_range, read_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.client.steps import Asking, Command

_FIELDS: Final = (
    "kind", "state", "cancel", "seq", "queue", "attempt", "worker", "model",
    "rank", "relegated", "score", "low", "tag", "sub", "start", "first", "end", "expire",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """The fields of a job's hash that a client reads, but for what the job says and how it ended."""

    state: JobState
    seq: int
    queue: str
    attempt: int
    worker: str | None
    model: str | None
    #: Place of its class, 0 for the most urgent.
    rank: int | None
    relegated: bool
    #: Its score beside its base: what it weighs against jobs that came when it did.
    weighs: int
    submitted_ms: int
    started_ms: int | None
    first_output_ms: int | None
    finished_ms: int | None
    expires_ms: int | None


def ask_record(job_id: str, *more: str) -> Command:
    """The command that reads a job's record, and further fields behind it."""
    return ("HMGET", topology.JOB + job_id, *_FIELDS, *more)


def read_record(reply: object) -> JobRecord | None:
    """The record, or None where there is no such job (a plain Celery task on our queues isn't one)."""
    values = cast("Sequence[bytes | None]", checked(reply))
    kind, state, cancel, seq, queue, attempt, worker, model, *more = values[: len(_FIELDS)]
    if kind not in {b"job", b"pipeline"} or state is None:
        return None
    rank, relegated, score, low, tag, submitted, *times = more
    started, first_output, finished, expires = map(_number, times)
    low_now = relegated == b"1"
    found = JobState(state.decode())
    return JobRecord(
        state=JobState.CANCELLING if found is JobState.RUNNING and cancel else found,
        seq=_number(seq) or 0,
        queue=_string(queue) or "",
        attempt=_number(attempt) or 0,
        worker=_string(worker),
        model=_string(model),
        rank=_number(rank),
        relegated=low_now,
        weighs=(_number(low if low_now else score) or 0) - (_number(tag) or 0),
        submitted_ms=_number(submitted) or 0,
        started_ms=started,
        first_output_ms=first_output,
        finished_ms=finished,
        expires_ms=expires,
    )


def read_more(reply: object) -> Sequence[bytes | None]:
    """The further fields that were asked for with a record, in that order."""
    return cast("Sequence[bytes | None]", checked(reply))[len(_FIELDS) :]


def read_outcome(job_id: str) -> Asking[tuple[JobRecord | None, Outcome | None]]:
    """Ask for a job's record, and its outcome if it has ended.

    A script that ends a job for a lost worker does not know its text: it is in the log, while that lives.
    """
    (reply,) = yield Ask((ask_record(job_id, "outcome"),))
    record = read_record(reply)
    if record is None or not record.state.terminal:
        return record, None
    (stored,) = read_more(reply)
    try:
        body = from_json(stored or b"")
        text = {}
        if "text" not in body and record.first_output_ms is not None:
            text = {"text": (yield from _logged_text(job_id))}
        outcome = Outcome.model_validate({**body, **text, **_observed(record, body)})
    except (ValueError, TypeError) as error:
        cause = None if isinstance(error, ValidationError) else error
        raise InternalError(f"the outcome of job {job_id} can't be read") from cause
    return record, outcome


def _observed(record: JobRecord, body: dict[str, object]) -> dict[str, object]:
    """What the scripts know better than, or beside, whoever wrote the outcome."""
    return {
        "timings": Timings(
            started_s=_since(record, record.started_ms),
            first_output_s=_since(record, record.first_output_ms),
            finished_s=_since(record, record.finished_ms),
        ),
        "attempts": body.get("attempts", record.attempt),
        "worker": body.get("worker", record.worker),
        "model": body.get("model", record.model),
    }


def _logged_text(job_id: str) -> Asking[str]:
    """All deltas of a job, joined."""
    texts: list[str] = []
    after, full = 0, True
    while full:
        (reply,) = yield Ask((log_range(job_id, after),))
        page = read_log(job_id, checked(reply))
        texts += [event.text for event in page.events if event.kind is EventKind.DELTA]
        after, full = (page.events[-1].seq, page.full) if page.events else (after, False)
    return "".join(texts)


def _since(record: JobRecord, at_ms: int | None) -> float | None:
    return None if at_ms is None else (at_ms - record.submitted_ms) / 1000


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)


def _string(value: bytes | None) -> str | None:
    return value.decode() if value else None
