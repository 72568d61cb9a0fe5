"""Fetches what a job refers to from the blob store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker.blobs import get_blob, read_blob

if TYPE_CHECKING:
    from redis import Redis

    from ccs_broker.contract import Job


def fetch_media(redis: Redis, job: Job) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Encoded images and sounds of a job, in order, each checked against its digest.

    Raises:
        NotFoundError: a medium is gone.
        InternalError: it isn't what its reference says.
    """
    if not job.media:
        return (), ()
    references = [*job.images, *job.audio]
    with redis.pipeline(transaction=False) as pipe:
        for reference in references:
            pipe.execute_command(*get_blob(reference))
        replies = pipe.execute()
    blobs = [read_blob(reference, reply) for reference, reply in zip(references, replies, strict=True)]
    return tuple(blobs[: len(job.images)]), tuple(blobs[len(job.images) :])
