"""Arguments of the scripts that put something new into the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker import topology
from ccs_broker.contract.limits import MAX_LIFETIME_S

if TYPE_CHECKING:
    from ccs_broker.ledger.records import Beginning, Entry
    from ccs_broker.policy import Policy

Argument = str | int | bytes
#: Keys of a job live from birth, should every worker be gone: a day longer than the longest lifetime.
BIRTH_TTL_S = int(MAX_LIFETIME_S) + 24 * 3600


def publish_args(
    entry: Entry, policy: Policy, ttl: tuple[int, int, int], queue_limit: int
) -> tuple[Argument, ...]:
    """Arguments of ``publish.lua``.

    Args:
        entry: what is published.
        policy: the fleet's scheduling policy.
        ttl: seconds that job, log and unused media stay.
        queue_limit: most jobs that may wait in the queue.
    """
    urgency, work, sizes = entry.urgency, entry.work, entry.sizes
    return (
        entry.id, entry.queue, entry.kind, entry.message, entry.payload,
        urgency.rank, urgency.target_us, entry.delay_ms, entry.expire_ms, BIRTH_TTL_S,
        entry.model, entry.modality, " ".join(entry.blobs), "1" if entry.celery else "",
        entry.idempotency, entry.digest, entry.source, entry.raw, topology.TICKET, *ttl,
        "share" if policy.fair else "clock", urgency.rank_us + urgency.slack_us,
        repr(urgency.factor), repr(urgency.low_factor), entry.overload.value, "1" if urgency.relegates else "",
        " ".join(map(str, sizes.values())), entry.tenant,
        "" if work is None else work.first_us, "" if work is None else work.cost_us,
        queue_limit, *_step_args(entry),
    )  # fmt: skip


def _step_args(entry: Entry) -> tuple[Argument, ...]:
    if (step := entry.step) is None:
        return ("", "", "", "", "")
    linked, skipped = ("1" if word else "" for word in (entry.linked, step.skipped))
    return (step.pipeline, step.name, step.on_failure, linked, skipped)


def begin_args(beginning: Beginning) -> tuple[Argument, ...]:
    """Arguments of ``begin.lua``."""
    fields = [part for pair in beginning.fields.items() for part in pair]
    return (
        beginning.id, beginning.expire_ms, BIRTH_TTL_S, beginning.rank, beginning.tenant,
        " ".join(beginning.blobs), beginning.output, " ".join(beginning.steps),
        beginning.idempotency, beginning.digest, *fields,
    )  # fmt: skip
