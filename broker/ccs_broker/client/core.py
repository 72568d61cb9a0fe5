"""Everything a client does, as plans: what to send, what the replies mean, which error that is. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Final, TypeVar, cast

from redis.exceptions import NoScriptError, ResponseError

from ccs_broker import topology
from ccs_broker.blobs import put_blob
from ccs_broker.client.faults import checked, refusal
from ccs_broker.client.files import read_file
from ccs_broker.client.records import JobState
from ccs_broker.client.steps import Ask, Asking, Command
from ccs_broker.contract.build import JobOptions, build_job
from ccs_broker.contract.job import is_job_id
from ccs_broker.contract.limits import DEFAULT_LIMITS, MAX_NAME_CHARS, Limits
from ccs_broker.contract.wire import dump_json
from ccs_broker.errors import (
    CcsError,
    ConflictError,
    InternalError,
    InvalidInputError,
    NoSuitableWorkerError,
    NotFoundError,
    QueueUnavailableError,
)
from ccs_broker.ledger.calls import LedgerCalls, text
from ccs_broker.ledger.entries import entry_of
from ccs_broker.ledger.records import Entry, Published, PublishStatus
from ccs_broker.ledger.refusals import overload_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccs_broker.contract.job import Job
    from ccs_broker.contract.words import Modality
    from ccs_broker.ledger.calls import Call
    from ccs_broker.settings import LedgerSettings

T = TypeVar("T")

#: Jobs, and bytes of media, that go out in one pipeline of a bulk submission.
BULK_JOBS: Final = 256
BULK_BYTES: Final = 8 * 1024 * 1024


class SubmitOptions(JobOptions, total=False):
    """What a caller may say about a job and its submission, beside its modality."""

    #: The same key of the same tenant with the same body is the same job, however often it is submitted.
    idempotency_key: str | None


class BulkJob(SubmitOptions, total=False):
    """One job of a bulk submission."""

    modality: Modality | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job ready to be sent."""

    entry: Entry
    blobs: dict[str, bytes]


class ClientCore:
    """The plans of one client; holds no state between them."""

    def __init__(self, settings: LedgerSettings, limits: Limits = DEFAULT_LIMITS) -> None:
        #: The ledger's scripts under this client's settings.
        self.calls = LedgerCalls(settings)
        self.limits = limits

    def prepare(self, modality: Modality | str, options: Mapping[str, object]) -> Submission:
        """Validate a job and read its media; the only part that may read files.

        Raises:
            InvalidInputError: the job is wrong, or over a limit.
        """
        options = dict(options)
        key = options.pop("idempotency_key", None)
        built = build_job(modality, options, job_id=token_hex(16), limits=self.limits, read_path=read_file)
        job = built.job
        entry = entry_of(
            job,
            payload=dump_json(job),
            idempotency="" if key is None else _idempotency_key(job.tenant, key),
            digest="" if key is None else _digest(job),
            policy=self.calls.policy,
        )
        return Submission(entry=entry, blobs=built.blobs)

    def prepare_many(self, jobs: Iterable[Mapping[str, object]]) -> list[Submission]:
        """Validate all jobs of a bulk submission before the first is sent; errors name the job's index."""
        submissions = []
        for index, job in enumerate(jobs):
            options = dict(job)
            try:
                submissions.append(self.prepare(cast("str", options.pop("modality", "")), options))
            except InvalidInputError as error:
                raise type(error)(f"job {index}: {error.message}") from None
        return submissions

    def submit(self, submission: Submission) -> Asking[str]:
        """Send one job in one round trip; gives its id.

        Raises:
            ConflictError: the idempotency key was used with another body.
            NoSuitableWorkerError: workers serve the modality, none of them the model.
            NotFoundError: a medium given by reference isn't in the store.
            DeadlineUnreachableError: it can't be done in time, and wished to be refused then.
            QueueFullError: as many jobs wait in its queue as may.
            QueueUnavailableError: the server refused.
        """
        (found,) = yield from self._publish((submission,))
        if isinstance(found, CcsError):
            raise found
        return found

    def submit_many(self, submissions: Sequence[Submission]) -> Asking[list[str | CcsError]]:
        """Send many jobs, some hundred in one round trip; gives the id of each, or why it was refused."""
        found: list[str | CcsError] = []
        for chunk in _chunks(submissions):
            try:
                found += yield from self._publish(chunk)
            except QueueUnavailableError as error:
                # What has been accepted is not lost from sight with the rest.
                return found + [error] * (len(submissions) - len(found))
        return found

    def cancel(self, job_id: str) -> Asking[JobState]:
        """Cancel a job; gives the state it is in then, which is the old one if it had ended.

        Raises:
            NotFoundError: there is no such job. Should it still come, as a plain Celery task or a canvas step may, it
                ends as cancelled then.
        """
        (reply,) = yield from run_calls((self.calls.cancel(job_id),))
        state = text(checked(reply))
        if state == "missing":
            raise unknown_job(job_id, "; should a job still arrive under this id, it will be cancelled")
        return JobState(state)

    def _publish(self, submissions: Sequence[Submission]) -> Asking[list[str | CcsError]]:
        uploads = [put_blob(sha, data) for each in submissions for sha, data in each.blobs.items()]
        calls = [self.calls.publish(each.entry) for each in submissions]
        replies = yield from run_calls(calls, uploads)
        found = [self._accepted(each.entry, reply) for each, reply in zip(submissions, replies, strict=True)]
        if uploads:
            yield from self._repair(submissions, found)
        return found

    def _repair(self, submissions: Sequence[Submission], found: list[str | CcsError]) -> Asking[None]:
        """Publish once more jobs whose medium was there at the upload and gone when the script ran."""
        gone = [
            i for i, answer in enumerate(found) if isinstance(answer, NotFoundError) and submissions[i].blobs
        ]
        if not gone:
            return
        uploads = [put_blob(sha, data) for i in gone for sha, data in submissions[i].blobs.items()]
        replies = yield from run_calls([self.calls.publish(submissions[i].entry) for i in gone], uploads)
        for i, reply in zip(gone, replies, strict=True):
            found[i] = self._accepted(submissions[i].entry, reply)

    def _accepted(self, entry: Entry, reply: object) -> str | CcsError:
        if isinstance(reply, ResponseError):
            return refusal(reply)
        published = self.calls.read_publish(reply)
        if published.status in (PublishStatus.OK, PublishStatus.SAME):
            return published.id
        return _refused(entry, published)


def run_calls(calls: Sequence[Call], before: Sequence[Command] = ()) -> Asking[list[object]]:
    """Run scripts behind some commands in one round trip, one more if the server has lost a script.

    Gives the replies of the scripts, error replies among them.
    """
    replies = yield Ask((*before, *(call.evalsha() for call in calls)))
    for reply in replies[: len(before)]:
        checked(reply)
    replies = replies[len(before) :]
    lost = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if lost:
        # A script that isn't there did nothing, so running it again repeats nothing.
        sources = {calls[i].script.source for i in lost}
        loads: list[Command] = [("SCRIPT", "LOAD", source) for source in sources]
        repeated = yield Ask((*loads, *(calls[i].evalsha() for i in lost)))
        for i, reply in zip(lost, repeated[len(loads) :], strict=True):
            replies[i] = reply
    return replies


def bulk_answer(
    found: Sequence[str | CcsError], handle: Callable[[str], T], *, return_errors: bool
) -> list[T | CcsError]:
    """Handles of a bulk submission, in order; the first refusal is raised unless errors are returned too."""
    refused = [each for each in found if isinstance(each, CcsError)]
    if refused and not return_errors:
        error = refused[0]
        if isinstance(error, QueueUnavailableError):
            error.maybe_accepted |= len(refused) < len(found)
        raise error
    return [each if isinstance(each, CcsError) else handle(each) for each in found]


def checked_id(job_id: object) -> str:
    """The id, if a job can have it; ``InvalidInputError`` otherwise."""
    if not is_job_id(job_id):
        raise InvalidInputError("a job's id is a string of 1 to 64 ASCII letters, digits, '-' and '_'")
    return job_id


def unknown_job(job_id: str, more: str = "") -> NotFoundError:
    """The error for an id that has no record; ``more`` goes on with its sentence."""
    return NotFoundError(f"there is no job {job_id[:MAX_NAME_CHARS]!r}, or its record has expired{more}")


def _refused(entry: Entry, published: Published) -> CcsError:
    if (error := overload_error(entry, published)) is not None:
        return error
    match published.status:
        case PublishStatus.CONFLICT:
            return ConflictError(f"the idempotency key was used for job {published.id}, with another body")
        case PublishStatus.NO_MODEL:
            return NoSuitableWorkerError(f"no worker serves the model {entry.model!r} for {entry.modality}")
        case PublishStatus.NO_BLOB:
            return NotFoundError(f"medium {published.id[:12]} is not in the store (any more); give its bytes")
        case _:
            return InternalError(f"publishing was answered with {published.status.value!r}")


def _chunks(submissions: Sequence[Submission]) -> Iterable[list[Submission]]:
    chunk: list[Submission] = []
    size = 0
    for each in submissions:
        chunk.append(each)
        size += len(each.entry.payload) + sum(map(len, each.blobs.values()))
        if len(chunk) >= BULK_JOBS or size >= BULK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _idempotency_key(tenant: str, key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= MAX_NAME_CHARS:
        raise InvalidInputError(f"idempotency_key: should be a string of 1 to {MAX_NAME_CHARS} characters")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("idempotency_key: is not valid Unicode") from None
    # Tenants may hold colons; without this one tenant could name another's key.
    return f"{topology.IDEMPOTENCY}{tenant.replace(':', '%3A')}:{key}"


def _digest(job: Job) -> str:
    """SHA-256 of everything a job says but its id, whatever the order of its metadata."""
    body = json.dumps(job.model_dump(mode="json", exclude={"id"}), sort_keys=True, ensure_ascii=False)
    return sha256(body.encode()).hexdigest()
