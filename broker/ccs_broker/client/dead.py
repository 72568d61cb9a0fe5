"""Plans on what went wrong for good: quarantined jobs, which can be replayed, and dead letters, which can't."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic_core import from_json

from ccs_broker import topology
from ccs_broker.client.core import Submission, run_calls, unknown_job
from ccs_broker.client.faults import checked
from ccs_broker.client.outcomes import JobRecord, ask_record, read_more, read_record
from ccs_broker.client.records import (
    DeadJob,
    DeadJobDetails,
    DeadLetter,
    DeadLetterDetails,
    DeadReport,
    JobState,
    Purged,
)
from ccs_broker.client.steps import Ask
from ccs_broker.contract.job import Job
from ccs_broker.contract.wire import dump_json, load_json
from ccs_broker.errors import InvalidInputError, NotFoundError
from ccs_broker.ledger.entries import entry_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccs_broker.client.core import ClientCore
    from ccs_broker.client.steps import Asking, Command

#: How the command line and error messages name a dead letter; no job id holds a colon.
LETTER: Final = "letter:"
#: Jobs and letters listed unless more are asked for.
DEFAULT_LIMIT: Final = 100
#: Jobs or letters read in one round trip: each may be a megabyte.
_PAGE: Final = 16
#: Jobs purged in one round trip.
_PURGE_PAGE: Final = 256
_MORE: Final = ("outcome", "job", "replayed_as", "losses", "crashes", "crashes_alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A quarantined job's hash, read."""

    shown: DeadJob
    record: JobRecord
    payload: bytes
    body: dict[str, Any]
    losses: int
    crashes: int
    crashes_alone: int


def listed(limit: int) -> Asking[DeadReport]:
    """The newest ``limit`` quarantined jobs and as many dead letters; no prompt and no bytes of a message."""
    if limit < 1:
        raise InvalidInputError("limit: should be at least 1")
    size, newest, length = yield Ask(
        (
            ("ZCARD", topology.QUARANTINED),
            ("ZRANGE", topology.QUARANTINED, 0, limit - 1, "REV"),
            ("LLEN", topology.DEAD),
        )
    )
    ids = [job_id.decode() for job_id in cast("Sequence[bytes]", checked(newest))]
    jobs: list[DeadJob] = []
    for page in _pages(ids, _PAGE):
        replies = yield Ask(tuple(ask_record(job_id, *_MORE) for job_id in page))
        # An entry may outlive its job for a while.
        jobs += [kept.shown for kept in map(_read_job, page, replies) if kept is not None]
    letters_total = cast("int", checked(length))
    first = max(0, letters_total - limit)
    letters: list[DeadLetter] = []
    for page in _pages(range(letters_total - 1, first - 1, -1), _PAGE):
        # Counted from the old end, so that one that comes in meanwhile moves none of them.
        (found,) = yield Ask((("LRANGE", topology.DEAD, -1 - page[0], -1 - page[-1]),))
        items = cast("Sequence[bytes]", checked(found))
        letters += [
            _read_letter(index, item)[0] for index, item in zip(page[-len(items) :], items, strict=False)
        ]
    return DeadReport(
        jobs=tuple(jobs),
        letters=tuple(letters),
        more_jobs=cast("int", checked(size)) - len(ids),
        more_letters=first,
    )


def job_details(job_id: str, *, raw: bool) -> Asking[DeadJobDetails]:
    """One quarantined job, with its payload if ``raw``; ``NotFoundError`` if there is none or it was purged."""
    kept = yield from _find_job(job_id)
    parts = [part for part in kept.body.get("parts", ()) if isinstance(part, dict)]
    media = [part["media"] for part in parts if isinstance(part.get("media"), dict)]
    return DeadJobDetails(
        job=kept.shown,
        qos=str(kept.body.get("qos", "")),
        submitted_ms=kept.record.submitted_ms,
        started_ms=kept.record.started_ms,
        worker=kept.record.worker,
        losses=kept.losses,
        crashes=kept.crashes,
        crashes_alone=kept.crashes_alone,
        text_chars=sum(len(str(part.get("text", ""))) for part in parts),
        media=len(media),
        media_bytes=sum(int(each.get("size_bytes", 0)) for each in media),
        payload=kept.body if raw else None,
    )


def letter_details(index: int, *, raw: bool) -> Asking[DeadLetterDetails]:
    """One dead letter, with the bytes that were kept of it if ``raw``; ``NotFoundError`` if there is none."""
    (item,) = yield from _letters_at(_checked_indexes((index,)))
    if item is None:
        raise NotFoundError(f"there is no {LETTER}{index}")
    letter, kept = _read_letter(index, item)
    return DeadLetterDetails(letter=letter, kept_bytes=len(kept), raw=kept if raw else None)


def replay(core: ClientCore, job_id: str) -> Asking[str]:
    """Submit a quarantined job's payload as a new job and give its id; repeated, it gives the same one.

    Raises:
        InvalidInputError: a dead letter was named, or the job was refused when it came in: there is nothing to run.
        NotFoundError: there is no such job among the quarantined, or its payload or a medium is gone.
        NoSuitableWorkerError: workers serve the modality, none of them the model.
    """
    if job_id.startswith(LETTER):
        raise InvalidInputError(
            f"{job_id} was never understood as a job; only quarantined jobs can be replayed"
        )
    kept = yield from _find_job(job_id)
    if "invalid" in kept.body:
        raise InvalidInputError(f"job {job_id} was refused when it came in; there is nothing to run")
    job = load_json(Job, kept.payload).model_copy(update={"id": token_hex(16)})
    # The old id is the digest as well: whatever this version makes of the payload, it is the same submission.
    entry = entry_of(
        job,
        payload=dump_json(job),
        idempotency=topology.REPLAY + job_id,
        digest=job_id,
        policy=core.calls.policy,
    )
    new_id = yield from core.submit(Submission(entry=entry, blobs={}))
    (noted,) = yield from run_calls((core.calls.replayed(job_id, new_id),))
    checked(noted)
    return new_id


def purge(
    core: ClientCore, jobs: Iterable[str] | Literal["all"], letters: Iterable[int] | Literal["all"]
) -> Asking[Purged]:
    """Drop quarantined jobs' payloads and media, and dead letters; what isn't there is left out of the count.

    Raises:
        InvalidInputError: an index is negative, or one string was given instead of several ids.
    """
    if isinstance(jobs, str) and jobs != "all":
        raise InvalidInputError("jobs: should be a list of ids, or 'all'")
    indexes = None if letters == "all" else _checked_indexes(letters)
    ids = list(dict.fromkeys(jobs)) if jobs != "all" else (yield from _all_ids())
    purged = 0
    for page in _pages(ids, _PURGE_PAGE):
        replies = yield from run_calls([core.calls.purge(job_id) for job_id in page])
        purged += sum(cast("int", checked(reply)) for reply in replies)
    dropped = (yield from _drop_all_letters()) if indexes is None else (yield from _drop_letters(indexes))
    return Purged(jobs=purged, letters=dropped)


def _find_job(job_id: str) -> Asking[_Kept]:
    (reply,) = yield Ask((ask_record(job_id, *_MORE),))
    kept = _read_job(job_id, reply)
    if kept is not None:
        return kept
    record = read_record(reply)
    if record is None:
        raise unknown_job(job_id)
    if record.state is JobState.QUARANTINED:
        raise NotFoundError(f"job {job_id} was purged: its payload is gone")
    raise NotFoundError(f"job {job_id} isn't quarantined, it is {record.state.value}")


def _read_job(job_id: str, reply: object) -> _Kept | None:
    """A quarantined job with its payload, or None for any other."""
    record = read_record(reply)
    outcome, payload, replayed_as, *counts = read_more(reply)
    if record is None or record.state is not JobState.QUARANTINED or payload is None:
        return None
    body = _object(payload)
    error = _object(outcome or b"").get("error") or {}
    losses, crashes, crashes_alone = (int(count or 0) for count in counts)
    shown = DeadJob(
        id=job_id,
        at_ms=record.finished_ms or 0,
        modality=record.queue.removeprefix(topology.QUEUE_PREFIX),
        model=record.model,
        tenant=str(body.get("tenant", "")),
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
        attempts=record.attempt,
        replayed_as=replayed_as.decode() if replayed_as else None,
    )
    return _Kept(
        shown=shown,
        record=record,
        payload=payload,
        body=body,
        losses=losses,
        crashes=crashes,
        crashes_alone=crashes_alone,
    )


def _read_letter(index: int, item: bytes) -> tuple[DeadLetter, bytes]:
    """A letter, and the bytes kept of its message; anything may lie on the list, so nothing in it is certain."""
    body = _object(item)
    try:
        kept = b64decode(str(body.get("raw", "")), validate=True)
        size_bytes = int(body.get("size_bytes", len(item)))
    except (ValueError, TypeError):
        kept, size_bytes = b"", len(item)
    queue, reason = str(body.get("queue", "?")), str(body.get("reason", "not a letter of ours"))
    return DeadLetter(index=index, queue=queue, reason=reason, size_bytes=size_bytes), kept


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = from_json(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _checked_indexes(indexes: Iterable[int]) -> list[int]:
    found = sorted(set(indexes))
    if found and found[0] < 0:
        raise InvalidInputError("letters: an index should be 0 or more")
    return found


def _letters_at(indexes: Sequence[int]) -> Asking[list[bytes | None]]:
    """The letters at these places as they lie there, None where there is none."""
    found: list[bytes | None] = []
    for page in _pages(indexes, _PAGE):
        replies = yield Ask(tuple(("LINDEX", topology.DEAD, -1 - index) for index in page))
        found += [cast("bytes | None", checked(reply)) for reply in replies]
    return found


def _drop_letters(indexes: Sequence[int]) -> Asking[int]:
    """Remove letters by what they are, not by their places, which removing one changes."""
    found = yield from _letters_at(indexes)
    dropped = 0
    for page in _pages([item for item in found if item is not None], _PAGE):
        removals: list[Command] = [("LREM", topology.DEAD, -1, item) for item in page]
        replies = yield Ask(tuple(removals))
        dropped += sum(cast("int", checked(reply)) for reply in replies)
    return dropped


def _drop_all_letters() -> Asking[int]:
    length, gone = yield Ask((("LLEN", topology.DEAD), ("DEL", topology.DEAD)))
    checked(gone)
    return cast("int", checked(length))


def _all_ids() -> Asking[list[str]]:
    (ids,) = yield Ask((("ZRANGE", topology.QUARANTINED, 0, -1),))
    return [job_id.decode() for job_id in cast("Sequence[bytes]", checked(ids))]


def _pages(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
