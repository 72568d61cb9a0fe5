"""From a job to its entry in the ledger, the same for every way in: client, Celery producer, intake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker import topology
from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.ledger.records import Entry
from ccs_broker.priority import urgency

if TYPE_CHECKING:
    from ccs_broker.contract.job import Job


def entry_of(job: Job, *, payload: bytes, idempotency: str = "", digest: str = "") -> Entry:
    """The entry of a job of our own client; ``dataclasses.replace`` adds what other ways in know.

    Args:
        job: the job.
        payload: its canonical JSON.
        idempotency: whole Redis key of an idempotent submission, or empty.
        digest: digest of its body, or empty.
    """
    return Entry(
        id=job.id,
        queue=topology.queue_of(job.modality),
        urgency=urgency(job.qos, job.deadline_s),
        payload=payload,
        expire_ms=max(1, int((job.deadline_s or MAX_LIFETIME_S) * 1000)),
        model=job.model or "",
        modality=job.modality.value,
        blobs=tuple(dict.fromkeys(media.sha256 for media in job.media)),
        idempotency=idempotency,
        digest=digest,
    )
