"""Names of every queue, key and channel in Redis; nothing else in the project spells one.

Key map (``<id>`` job id, ``<q>`` queue name, ``<sha>`` SHA-256 of a medium):

| name | type | holds | ends by |
|---|---|---|---|
| ``ccs:job:<id>`` | hash | state, attempt, message, payload, outcome | TTL from birth, shorter from the outcome |
| ``ccs:log:<id>`` | stream | events; entry ``<seq>-0`` | TTL from birth, shorter from the outcome |
| ``ccs:events:<id>`` | channel | each event as JSON, the bell | - |
| ``ccs:control`` | channel | running entries that were cancelled, a hint to their workers | - |
| ``ccs:waiting:<q>`` | zset | id by score | emptied by claims; bounded by lifetimes |
| ``ccs:lane:<q>:<model>`` | zset | the same, of the jobs that name a model, or none | as above |
| ``ccs:aged:<q>``, ``ccs:aged:<q>:<model>`` | zset | batch and relegated jobs by submission, ms | as above |
| ``ccs:late`` | zset | id by the time when its first output can't come in time any more, ms | outcomes, sweeps |
| ``ccs:load`` | hash | counts and expected device time of what waits and runs | TTL |
| ``ccs:share`` | hash | virtual time, weight of the tenants that wait, the floor's credit | TTL |
| ``ccs:share:n`` | hash | tenant: its waiting jobs | emptied by claims; TTL |
| ``ccs:share:f`` | zset | ``rank|tenant`` by the virtual time of its next job | pruned by sweeps, TTL |
| ``ccs:weights`` | hash | tenant: its weight, where that isn't 1 | bounded size; an operator's setting |
| ``ccs:work:<q>:<model>`` | hash | coefficients of a kind of job's device time | TTL |
| ``ccs:stats:<q>:<model>`` | hash | what those were learnt from | TTL |
| ``ccs:muted:<q>`` | string | a worker doesn't listen to the queue's tickets | TTL |
| ``ccs:nudge:<q>`` | list | wakes such workers for urgent jobs | bounded length, TTL |
| ``ccs:preempting:<id>`` | string | a worker that lets a running job make way for this waiting one | TTL |
| ``ccs:wake:<channel>`` | list | tells a worker's consumer that its own room has grown | TTL |
| ``ccs:delayed`` | zset | id by due time, ms | emptied by sweeps |
| ``ccs:expiry`` | zset | id by deadline or lifetime, ms | emptied by outcomes and sweeps |
| ``ccs:running`` | zset | ``id|attempt`` by end of lease, ms | emptied by acks and sweeps |
| ``ccs:swept`` | string | time by which the next sweep is expected, ms | TTL |
| ``ccs:missing`` | hash | queue: since when at least how many tickets are missing, ``ms count`` | sweeps, TTL |
| ``<q>:1`` | list | one ticket per waiting job | emptied by claims |
| ``ccs:models:<modality>`` | zset | model alias by time it counts as served, ms | TTL |
| ``ccs:workers`` | zset | worker name by time it counts as alive, ms | TTL |
| ``ccs:worker:<name>`` | string | the worker's own report, JSON | TTL |
| ``ccs:idem:<tenant>:<key>`` | string | ``digest id`` of an idempotent submission | TTL |
| ``ccs:blob:<sha>`` | string | bytes of a medium | TTL |
| ``ccs:refs:<sha>`` | set | ids of unfinished jobs that use it | TTL |
| ``ccs:tombstones`` | zset | ids cancelled before they came, by the time it counts until, ms | bounds, TTL |
| ``ccs:quarantined`` | zset | ids of quarantined jobs by time, ms; their hashes keep the payload | bounded age, TTL |
| ``ccs:dead`` | list | what could not be understood, newest first | bounded length, TTL |
"""

from __future__ import annotations

from typing import Final

from ccs_broker.contract.words import Modality

PREFIX: Final = "ccs:"
QUEUE_PREFIX: Final = "ccs."
#: Kombu's separator between queue and band, set by us so that tools can count our tickets.
BAND_SEPARATOR: Final = ":"
#: Tickets lie in band 1; band 0 is the plain list, where foreign producers push.
TICKET_BAND: Final = 1
#: Lists where plain Celery producers put messages: the plain one and Kombu's stock bands.
FOREIGN_SUFFIXES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
#: A ticket is one fixed byte string that cannot begin JSON; it is compared whole.
TICKET: Final = b"\x00ccs-ticket"

WAITING: Final = "ccs:waiting:"
JOB: Final = "ccs:job:"
LOG: Final = "ccs:log:"
CHANNEL: Final = "ccs:events:"
BLOB: Final = "ccs:blob:"
BLOB_REFS: Final = "ccs:refs:"
MODELS: Final = "ccs:models:"
WORKER: Final = "ccs:worker:"
IDEMPOTENCY: Final = "ccs:idem:"
#: In the place of a tenant, whose name can't begin like this: the key of a replay, followed by the old id.
REPLAY: Final = IDEMPOTENCY + "~replay:"
DELAYED: Final = "ccs:delayed"
LANE: Final = "ccs:lane:"
LATE: Final = "ccs:late"
LOAD: Final = "ccs:load"
SHARE: Final = "ccs:share"
TENANTS_WAITING: Final = "ccs:share:n"
WEIGHTS: Final = "ccs:weights"
MUTED: Final = "ccs:muted:"
NUDGE: Final = "ccs:nudge:"
PREEMPTING: Final = "ccs:preempting:"
WAKE: Final = "ccs:wake:"
EXPIRY: Final = "ccs:expiry"
RUNNING: Final = "ccs:running"
SWEPT: Final = "ccs:swept"
MISSING: Final = "ccs:missing"
WORKERS: Final = "ccs:workers"
DEAD: Final = "ccs:dead"
CONTROL: Final = "ccs:control"
QUARANTINED: Final = "ccs:quarantined"
TOMBSTONES: Final = "ccs:tombstones"

#: Celery's own name for a stored result.
CELERY_RESULT: Final = "celery-task-meta-"

QUEUES: Final = tuple(QUEUE_PREFIX + modality.value for modality in Modality)


def queue_of(modality: Modality) -> str:
    """Queue of a modality, as Celery names it."""
    return QUEUE_PREFIX + modality.value


def is_ledger_queue(queue: str) -> bool:
    """True for the queues whose messages live in the ledger."""
    return queue in QUEUES


def modality_of(queue: str) -> Modality:
    """Modality of a ledger queue; ``ValueError`` for any other."""
    return Modality(queue.removeprefix(QUEUE_PREFIX))


def tickets_of(queue: str) -> str:
    """List that holds a queue's tickets; its length is the number of waiting jobs."""
    return f"{queue}{BAND_SEPARATOR}{TICKET_BAND}"


def lane_of(queue: str, model: str) -> str:
    """Waiting jobs of a queue that name a model, or none where ``model`` is empty, by score."""
    return f"{LANE}{queue}:{model}"


def relegated_field(queue: str) -> str:
    """Field of ``ccs:load`` that counts a queue's waiting jobs which are relegated."""
    return f"low:{queue}"


def work_of(queue: str, model: str) -> str:
    """Coefficients of the device time of jobs that name a model, or none."""
    return f"ccs:work:{queue}:{model}"


def statistics_of(queue: str, model: str) -> str:
    """What the coefficients of :func:`work_of` were learnt from."""
    return f"ccs:stats:{queue}:{model}"


def foreign_lists_of(queue: str) -> tuple[str, ...]:
    """Lists of a queue on which plain Celery producers push."""
    return tuple(queue + suffix for suffix in FOREIGN_SUFFIXES)


def run_entry(job_id: str, attempt: int) -> str:
    """A running entry: job id and attempt, so that an old delivery can't ack a newer one."""
    return f"{job_id}|{attempt}"


def split_run_entry(entry: str) -> tuple[str, int]:
    """Inverse of :func:`run_entry`; ``ValueError`` if it isn't one."""
    job_id, bar, attempt = entry.rpartition("|")
    if not bar:
        raise ValueError("not a running entry")
    return job_id, int(attempt)
