"""From a claim's payload to what an engine takes: the job, validated again, with its media and its seed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ccs_broker.blobs import get_blob, read_blob
from ccs_broker.contract import Job
from ccs_broker.contract.wire import invalid_input
from ccs_broker.errors import InvalidInputError, error_for_code
from ccs_workers.engines.protocol import EngineJob

if TYPE_CHECKING:
    from redis import Redis

    from ccs_broker.ledger import Claim

_SEED_BYTES = 7


def job_of(claim: Claim) -> Job:
    """The job a claim carries, validated again on this side.

    Raises:
        CcsError: it isn't valid, or intake found it invalid already.
    """
    try:
        fields = json.loads(claim.payload)
        refused = fields.get("invalid")
        if refused:
            raise error_for_code(str(refused["code"]), str(refused["message"]))
        return Job.model_validate(fields)
    except ValidationError as error:
        raise invalid_input(error) from None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise InvalidInputError("the job's payload can't be read") from None


def seed_of(job: Job) -> int:
    """The caller's seed, or one that follows from the job's id: every attempt must draw the same tokens."""
    if job.sampling.seed is not None:
        return job.sampling.seed
    return int.from_bytes(sha256(job.id.encode()).digest()[:_SEED_BYTES], "big")


def engine_job(redis: Redis, job: Job, key: str) -> EngineJob:
    """What the engine is given; fetches media from the blob store.

    Raises:
        NotFoundError: a medium is gone.
        InternalError: a medium isn't what its reference says.
    """
    references = [*job.images, *job.audio]
    blobs: list[bytes] = []
    if references:
        with redis.pipeline(transaction=False) as pipe:
            for reference in references:
                pipe.execute_command(*get_blob(reference))
            replies = pipe.execute()
        blobs = [read_blob(reference, reply) for reference, reply in zip(references, replies, strict=True)]
    images = len(job.images)
    return EngineJob(
        key=key,
        prompt=job.prompt,
        sampling=job.sampling,
        seed=seed_of(job),
        images=tuple(blobs[:images]),
        audio=tuple(blobs[images:]),
    )
