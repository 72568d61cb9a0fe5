"""Celery's remote commands ``revoke`` and ``terminate``, made durable: the ledger hears of them before Celery does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.utils.functional import maybe_list
from celery.worker import state as worker_state
from celery.worker.control import Panel
from celery.worker.control import revoke as celery_revoke
from redis.exceptions import RedisError

from ccs_broker.contract import is_job_id
from ccs_broker.ledger.calls import text
from ccs_broker.ledger.faults import fault_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.ledger import Ledger
    from ccs_broker.ledger.records import CancelReach

logger = logging.getLogger(__name__)

#: What the ledger answers for a job that another worker may hold.
_HELD = frozenset({"running", "cancelling"})


def answer_revokes(ledger: Ledger) -> None:
    """Put our ``revoke`` and ``terminate`` in the place of Celery's, for this process.

    What waits in the ledger ends at once, what isn't there yet will end when it comes, and what runs is stopped
    with ``terminate=True``. Celery keeps the ids in memory besides, in every worker.
    """

    def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        ids = list(dict.fromkeys(maybe_list(task_id) or []))
        elsewhere = _running_elsewhere(_tell(ledger, ids, "any" if terminate else "unstarted"))
        # Celery would mark their results as revoked, although they go on or have yet to stop.
        worker_state.revoked.update(elsewhere)
        return celery_revoke(
            state, [one for one in ids if one not in elsewhere], terminate=terminate, signal=signal, **kwargs
        )

    def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> Any:
        return revoke(state, task_id, terminate=True, signal=signal)

    # How they are called, and their help, stay those of Celery's own.
    Panel.data |= {"revoke": revoke, "terminate": terminate}


def _tell(ledger: Ledger, ids: Sequence[Any], reach: CancelReach) -> dict[str, str]:
    """Cancel in the ledger; its answer by id, for those it gave one."""
    known = [one for one in ids if is_job_id(one)]
    calls = [ledger.calls.cancel(one, reach) for one in known]
    try:
        replies = ledger.run_many(calls) if calls else []
    except (RedisError, OSError) as error:
        replies = [error] * len(calls)
    faults = [reply for reply in replies if isinstance(reply, Exception)]
    if faults:
        logger.warning(
            "a revoke is only kept in memory: the ledger can't be told (%s)", fault_word(faults[0])
        )
    return {
        one: text(reply)
        for one, reply in zip(known, replies, strict=True)
        if not isinstance(reply, Exception)
    }


def _running_elsewhere(answers: dict[str, str]) -> set[str]:
    return {one for one, answer in answers.items() if answer in _HELD and one not in worker_state.requests}
