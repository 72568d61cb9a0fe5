"""Handles: one job, seen from a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker.client import changing, looking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ccs_broker.client import records
    from ccs_broker.client.aio import AsyncClient
    from ccs_broker.client.sync import Client
    from ccs_broker.contract.event import Event
    from ccs_broker.contract.outcome import Outcome
    from ccs_broker.contract.words import QosClass

__all__ = ["AsyncJobHandle", "JobHandle"]


class JobHandle:
    """One job, seen from a client."""

    __slots__ = ("_client", "id")

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def stream(self, after: int = 0, timeout: float | None = 30.0) -> Iterator[Event]:
        """The job's events behind number ``after``, in order and without holes, up to the terminal one.

        It may be called early, late or again: the sequence is the same. ``timeout`` is the longest silence in
        seconds, or None. The subscription ends with the iterator, also if that is dropped or closed midway.

        Raises (while iterating):
            NotFoundError: there is no such job.
            StreamExpiredError: the log is gone; the error holds the outcome.
            WaitTimeoutError: no event for ``timeout`` seconds; go on with ``after``.
            QueueUnavailableError: the server can't be reached; go on with ``after``.
        """
        return self._client._stream(self.id, after, timeout)

    def result(self, timeout: float | None = 30.0) -> Outcome:
        """Wait for the job's end and give its outcome; a job that failed gives one too.

        Raises:
            NotFoundError: there is no such job.
            WaitTimeoutError: it had not ended after ``timeout`` seconds; the job goes on.
            QueueUnavailableError: the server can't be reached.
        """
        return self._client._result(self.id, timeout)

    def status(self) -> records.JobStatus:
        """Where the job is; ``NotFoundError`` if nowhere."""
        return self._client._run(looking.status(self.id))

    def cancel(self) -> records.JobState:
        """Cancel the job; ``NotFoundError`` if there is none (should it still arrive, it is cancelled then).

        Returns:
            The state it is in then: cancelled, cancelling (it runs and stops at its next step), or how it had
            ended before.
        """
        return self._client._run(self._client._core.cancel(self.id))

    def reprioritize(
        self, qos: QosClass | str | None = None, deadline_s: float | None = None
    ) -> records.JobStatus:
        """Give the job another class or deadline while it waits; what isn't given stays.

        It keeps its turn among its tenant's jobs. The target of its class and ``deadline_s`` count from now, so a
        relegated job that can be in time again is relegated no longer.

        Raises:
            InvalidInputError: neither is given, or one is wrong.
            NotFoundError: there is no such job.
            ConflictError: it runs already, or has ended.
        """
        return self._client._run(changing.reprioritize(self._client._core, self.id, qos, deadline_s))


class AsyncJobHandle:
    """One job, seen from an asynchronous client; see :class:`ccs_broker.client.handles.JobHandle`."""

    __slots__ = ("_client", "id")

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"

    def stream(self, after: int = 0, timeout: float | None = 30.0) -> AsyncIterator[Event]:
        """As :meth:`ccs_broker.client.handles.JobHandle.stream`.

        Leave it early through ``contextlib.aclosing``: a dropped iterator is closed when the loop gets to it.
        """
        return self._client._stream(self.id, after, timeout)

    async def result(self, timeout: float | None = 30.0) -> Outcome:
        """As :meth:`ccs_broker.client.handles.JobHandle.result`."""
        return await self._client._result(self.id, timeout)

    async def status(self) -> records.JobStatus:
        """Where the job is; ``NotFoundError`` if nowhere."""
        return await self._client._run(looking.status(self.id))

    async def cancel(self) -> records.JobState:
        """Cancel the job and give the state it is in then; ``NotFoundError`` if there is none (yet)."""
        return await self._client._run(self._client._core.cancel(self.id))

    async def reprioritize(
        self, qos: QosClass | str | None = None, deadline_s: float | None = None
    ) -> records.JobStatus:
        """As :meth:`ccs_broker.client.handles.JobHandle.reprioritize`."""
        return await self._client._run(changing.reprioritize(self._client._core, self.id, qos, deadline_s))
