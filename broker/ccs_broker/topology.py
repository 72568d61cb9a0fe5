"""Names of every queue, key and channel in Redis; nothing else in the project spells one.

Key map (``<id>`` job id, ``<q>`` queue name, ``<sha>`` SHA-256 of a medium):

| name | type | holds | ends by |
|---|---|---|---|
| ``ccs:job:<id>`` | hash | state, attempt, message, payload, outcome | TTL from birth, shorter from the outcome |
| ``ccs:log:<id>`` | stream | events; entry ``<seq>-0`` | TTL from birth, shorter from the outcome |
| ``ccs:events:<id>`` | channel | each event as JSON, the bell | - |
| ``ccs:control`` | channel | running entries that were cancelled, a hint to their workers | - |
| ``ccs:waiting:<q>`` | zset | id by score | emptied by claims; bounded by lifetimes |
| ``ccs:delayed`` | zset | id by due time, ms | emptied by sweeps |
| ``ccs:expiry`` | zset | id by deadline or lifetime, ms | emptied by outcomes and sweeps |
| ``ccs:running`` | zset | ``id|attempt`` by end of lease, ms | emptied by acks and sweeps |
| ``ccs:swept`` | string | time by which the next sweep is expected, ms | TTL |
| ``<q>:1`` | list | one ticket per waiting job | emptied by claims |
| ``ccs:models:<modality>`` | zset | model alias by time it counts as served, ms | TTL |
| ``ccs:workers`` | zset | worker name by time it counts as alive, ms | TTL |
| ``ccs:worker:<name>`` | string | the worker's own report, JSON | TTL |
| ``ccs:idem:<tenant>:<key>`` | string | ``digest id`` of an idempotent submission | TTL |
| ``ccs:blob:<sha>`` | string | bytes of a medium | TTL |
| ``ccs:refs:<sha>`` | set | ids of unfinished jobs that use it | TTL |
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
EXPIRY: Final = "ccs:expiry"
RUNNING: Final = "ccs:running"
SWEPT: Final = "ccs:swept"
WORKERS: Final = "ccs:workers"
DEAD: Final = "ccs:dead"
CONTROL: Final = "ccs:control"
QUARANTINED: Final = "ccs:quarantined"

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
