"""From a job to its entry in the ledger, the same for every way in: client, Celery producer, intake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker import topology
from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.contract.parts import ImagePart, TextPart
from ccs_broker.ledger.records import Entry, Sizes
from ccs_broker.policy import BALANCED
from ccs_broker.priority import urgency

if TYPE_CHECKING:
    from ccs_broker.contract.job import Job
    from ccs_broker.policy import Policy


def entry_of(
    job: Job, *, payload: bytes, idempotency: str = "", digest: str = "", policy: Policy = BALANCED
) -> Entry:
    """The entry of a job of our own client; ``dataclasses.replace`` adds what other ways in know.

    Args:
        job: the job.
        payload: its canonical JSON.
        idempotency: whole Redis key of an idempotent submission, or empty.
        digest: digest of its body, or empty.
        policy: the fleet's scheduling policy.
    """
    return Entry(
        id=job.id,
        queue=topology.queue_of(job.modality),
        urgency=urgency(job.qos, job.deadline_s, policy=policy, overload=job.overload),
        payload=payload,
        expire_ms=max(1, int((job.deadline_s or MAX_LIFETIME_S) * 1000)),
        model=job.model or "",
        modality=job.modality.value,
        blobs=tuple(dict.fromkeys(media.sha256 for media in job.media)),
        idempotency=idempotency,
        digest=digest,
        sizes=sizes_of(job),
        tenant=job.tenant,
        overload=job.overload,
    )


def sizes_of(job: Job) -> Sizes:
    """What a job's work is estimated by; workers learn from the same numbers."""
    chars = images = media_bytes = 0
    for part in job.parts:
        if isinstance(part, TextPart):
            chars += len(part.text)
        else:
            images += isinstance(part, ImagePart)
            media_bytes += part.media.size_bytes
    return Sizes(
        prompt_chars=chars,
        new_tokens=job.sampling.max_new_tokens,
        images=images,
        media_bytes=media_bytes,
    )
