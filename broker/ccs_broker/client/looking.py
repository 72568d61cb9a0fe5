"""Plans that look at jobs, queues and workers and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from pydantic_core import from_json

from ccs_broker import topology
from ccs_broker.client.core import unknown_job
from ccs_broker.client.faults import checked
from ccs_broker.client.outcomes import ask_record, read_record
from ccs_broker.client.records import JobState, JobStatus, QueueDepth, QueueReport, WorkerInfo
from ccs_broker.client.steps import Ask
from ccs_broker.ledger.prediction import predicted_wait_us
from ccs_broker.priority import qos_of_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.client.outcomes import JobRecord
    from ccs_broker.client.steps import Asking, Command

#: Running entries whose queue is looked up; beyond it the counts by queue are too low.
_MOST_RUNNING: Final = 10_000


def status(job_id: str) -> Asking[JobStatus]:
    """Where a job is; ``NotFoundError`` if nowhere."""
    # Its queue isn't known before the reply, so its rank is asked for in all of them: still one round trip.
    ranks: list[Command] = [("ZRANK", topology.WAITING + queue, job_id) for queue in topology.QUEUES]
    depths: list[Command] = [("ZCARD", topology.WAITING + queue) for queue in topology.QUEUES]
    load: Command = ("HGETALL", topology.LOAD)
    first, found, workers, *places = yield Ask(
        (ask_record(job_id), load, ("ZCARD", topology.WORKERS), *ranks, *depths)
    )
    record = read_record(first)
    if record is None:
        raise unknown_job(job_id)
    position = estimate_s = None
    if record.state is JobState.WAITING and record.queue in topology.QUEUES:
        at = topology.QUEUES.index(record.queue)
        position = cast("int | None", checked(places[at]))
        depth = cast("int", checked(places[at + len(topology.QUEUES)]))
        if position is not None:
            estimate_s = _wait_s(record, found, checked(workers), ahead=position / max(1, depth))
    return JobStatus(
        id=job_id,
        state=record.state,
        queue=record.queue,
        attempt=record.attempt,
        qos=None if record.rank is None else qos_of_rank(record.rank),
        relegated=record.relegated,
        position=position,
        estimate_s=estimate_s,
        worker=record.worker,
        model=record.model,
        events=record.seq,
        submitted_ms=record.submitted_ms,
        started_ms=record.started_ms,
        first_output_ms=record.first_output_ms,
        finished_ms=record.finished_ms,
        expires_ms=record.expires_ms,
    )


def _wait_s(record: JobRecord, load: object, workers: object, *, ahead: float) -> float:
    counts = {name: int(value) for name, value in as_mapping(checked(load)).items()}
    wait_us = predicted_wait_us(counts, record.weighs, cast("int", workers), ahead=ahead)
    return round(wait_us / 1e6, 3)


def as_mapping(reply: object) -> dict[str, str]:
    """A hash's fields as text, whether the server answered with a map or a flat list."""
    if isinstance(reply, dict):
        return {name.decode(): value.decode() for name, value in reply.items()}
    flat = [part.decode() for part in cast("Sequence[bytes]", reply)]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def queues() -> Asking[QueueReport]:
    """Depth of every queue."""
    depths: list[Command] = [("ZCARD", topology.WAITING + queue) for queue in topology.QUEUES]
    depths += [("LLEN", topology.tickets_of(queue)) for queue in topology.QUEUES]
    low: Command = ("HMGET", topology.LOAD, *(topology.relegated_field(queue) for queue in topology.QUEUES))
    *counts, low_counts, delayed, entries = yield Ask(
        (*depths, low, ("ZCARD", topology.DELAYED), ("ZRANGE", topology.RUNNING, 0, _MOST_RUNNING - 1))
    )
    relegated = [max(0, int(n or 0)) for n in cast("Sequence[bytes | None]", checked(low_counts))]
    running = yield from _running_by_queue(cast("Sequence[bytes]", checked(entries)))
    numbers = [cast("int", checked(count)) for count in counts]
    return QueueReport(
        queues=tuple(
            QueueDepth(
                name=queue, waiting=waiting, tickets=tickets, running=running.get(queue, 0), relegated=late
            )
            for queue, waiting, tickets, late in zip(
                topology.QUEUES,
                numbers[: len(topology.QUEUES)],
                numbers[len(topology.QUEUES) :],
                relegated,
                strict=True,
            )
        ),
        delayed=cast("int", checked(delayed)),
    )


def _running_by_queue(entries: Sequence[bytes]) -> Asking[dict[str, int]]:
    counts: dict[str, int] = {}
    if entries:
        ids = [topology.split_run_entry(entry.decode())[0] for entry in entries]
        found = yield Ask(tuple(("HGET", topology.JOB + job_id, "queue") for job_id in ids))
        for queue in found:
            name = cast("bytes | None", checked(queue))
            if name is not None:
                counts[name.decode()] = counts.get(name.decode(), 0) + 1
    return counts


def workers() -> Asking[tuple[WorkerInfo, ...]]:
    """The workers that count as alive, by name, with their own reports."""
    clock, scored = yield Ask((("TIME",), ("ZRANGE", topology.WORKERS, 0, -1, "WITHSCORES")))
    seconds, micros = cast("Sequence[bytes]", checked(clock))
    now_ms = int(seconds) * 1000 + int(micros) / 1000
    flat = cast("Sequence[bytes]", checked(scored))
    alive = {
        name.decode(): (float(until) - now_ms) / 1000
        for name, until in zip(flat[::2], flat[1::2], strict=True)
        if float(until) > now_ms
    }
    if not alive:
        return ()
    names = sorted(alive)
    (reports,) = yield Ask((("MGET", *(topology.WORKER + name for name in names)),))
    return tuple(
        WorkerInfo(name=name, alive_for_s=alive[name], report=_report(report))
        for name, report in zip(names, cast("Sequence[bytes | None]", checked(reports)), strict=True)
        if report is not None
    )


def _report(report: bytes) -> dict[str, object]:
    try:
        found = from_json(report)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def ping() -> Asking[None]:
    """Ask for a sign of life."""
    (reply,) = yield Ask((("PING",),))
    checked(reply)
