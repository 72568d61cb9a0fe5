"""Looks at the server before a worker trusts jobs to it: one that evicts would lose them without a word."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from ccs_broker.errors import ConfigurationError
from ccs_broker.ledger.faults import fault_word

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger(__name__)


def require_no_eviction(redis: Redis, *, allowed: bool) -> None:
    """Check the server's eviction policy, which INFO tells to users who may not ask for the configuration.

    Args:
        redis: a client of the server.
        allowed: only warn.

    Raises:
        ConfigurationError: the server may evict.
    """
    try:
        policy = redis.info("memory").get("maxmemory_policy")
    except (RedisError, OSError) as error:
        logger.warning("the server's maxmemory-policy could not be checked (%s)", fault_word(error))
        return
    if policy == "noeviction":
        return
    if policy is None:
        logger.warning("the server doesn't tell its maxmemory-policy; make sure that it is noeviction")
        return
    if not allowed:
        raise ConfigurationError(
            f"the server may evict waiting jobs and results: its maxmemory-policy is {policy}; "
            "set it to noeviction, or accept the loss with CCS_ALLOW_EVICTION=1"
        )
    logger.warning(
        "JOBS AND RESULTS CAN VANISH: the server's maxmemory-policy is %s, and CCS_ALLOW_EVICTION=1", policy
    )
