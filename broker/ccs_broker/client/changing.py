"""Plans that change who runs next: a waiting job's class and deadline, and the tenants' weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, cast

from pydantic import TypeAdapter, ValidationError

from ccs_broker import topology
from ccs_broker.client import looking
from ccs_broker.client.core import run_calls, unknown_job
from ccs_broker.client.faults import checked
from ccs_broker.client.records import TenantShare
from ccs_broker.client.steps import Ask
from ccs_broker.contract.build import parse_word
from ccs_broker.contract.job import Job, Name
from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.contract.wording import expected_of, kind_of
from ccs_broker.contract.words import Overload, QosClass
from ccs_broker.errors import ConflictError, InvalidInputError
from ccs_broker.ledger.calls import MOST_WEIGHTS, text
from ccs_broker.priority import qos_of_rank, urgency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.client.core import ClientCore
    from ccs_broker.client.records import JobStatus
    from ccs_broker.client.steps import Asking

#: Weights that a tenant may have.
LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1000.0
_FIELDS: Final = ("kind", "rank", "expire", "sub", "low")
_TENANT: Final = TypeAdapter(Name)


def reprioritize(
    core: ClientCore, job_id: str, qos: QosClass | str | None, deadline_s: float | None
) -> Asking[JobStatus]:
    """Give a waiting job another class or deadline; gives what it is then.

    Raises:
        InvalidInputError: neither is given, or one is wrong.
        NotFoundError: there is no such job.
        ConflictError: it doesn't wait any more.
    """
    if qos is None and deadline_s is None:
        raise InvalidInputError("qos and deadline_s: at least one should be given")
    if deadline_s is not None:
        _check_deadline(deadline_s)
    wanted = None if qos is None else parse_word(QosClass, "qos", qos)
    reply, clock = yield Ask((("HMGET", topology.JOB + job_id, *_FIELDS), ("TIME",)))
    kind, rank, expire, submitted, low = cast("Sequence[bytes | None]", checked(reply))
    if kind != b"job" or rank is None or expire is None or submitted is None:
        raise unknown_job(job_id)
    seconds, micros = cast("Sequence[bytes]", checked(clock))
    left_s = (int(expire) - int(seconds) * 1000 - int(micros) / 1000) / 1000
    has_deadline = int(expire) - int(submitted) < int(MAX_LIFETIME_S * 1000)
    deadline = deadline_s or (max(0.001, left_s) if has_deadline else None)
    urgent = urgency(
        wanted or qos_of_rank(int(rank)),
        deadline,
        policy=core.calls.policy,
        # Only a job that accepts to be late has no score for being relegated.
        overload=Overload.ACCEPT if low is None else Overload.RELEGATE,
    )
    expire_ms = None if deadline_s is None else max(1, int(deadline_s * 1000))
    (answer,) = yield from run_calls((core.calls.reprioritize(job_id, urgent, expire_ms),))
    state = text(checked(answer))
    if state == "missing":
        raise unknown_job(job_id)
    if state != "ok":
        raise ConflictError(f"job {job_id} doesn't wait any more, it is {state}")
    return (yield from looking.status(job_id))


def _check_deadline(deadline_s: object) -> None:
    sane = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
    if not sane or not 0 < cast("float", deadline_s) <= MAX_LIFETIME_S:
        raise InvalidInputError(f"deadline_s: should be a number of seconds over 0, up to {MAX_LIFETIME_S:g}")


def tenants() -> Asking[tuple[TenantShare, ...]]:
    """Tenants that have jobs waiting or a weight of their own, by name."""
    replies = yield Ask((("HGETALL", topology.WEIGHTS), ("HGETALL", topology.TENANTS_WAITING)))
    weights, waiting = (looking.as_mapping(checked(reply)) for reply in replies)
    return tuple(
        TenantShare(name=name, weight=float(weights.get(name, 1)), waiting=int(waiting.get(name, 0)))
        for name in sorted({*weights, *waiting})
    )


def set_weight(core: ClientCore, tenant: str, weight: float) -> Asking[None]:
    """Set a tenant's weight from now on, for what it has waiting as well.

    Raises:
        InvalidInputError: the name or the weight is wrong, or too many tenants have a weight of their own.
    """
    try:
        _TENANT.validate_python(tenant)
    except ValidationError as error:
        fault = kind_of(tenant, error.errors()[0]["type"])
        raise InvalidInputError(f"tenant: should be {expected_of(Job, 'tenant')}, not {fault}") from None
    if not math.isfinite(weight) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidInputError(f"weight: should be a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}")
    (reply,) = yield from run_calls((core.calls.weigh(tenant, weight),))
    if text(checked(reply)) == "full":
        raise InvalidInputError(f"weight: {MOST_WEIGHTS} tenants have one of their own; set some back to 1")
