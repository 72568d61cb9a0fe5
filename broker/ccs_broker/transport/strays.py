"""Strays: jobs that the ledger has given to this worker in replies that never arrived, handed back at once.

Their leases would run out by themselves, but a reader would wait for that, and at each cut connection anew.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from ccs_broker import topology
from ccs_broker.transport.profile import NAMELESS

if TYPE_CHECKING:
    from ccs_broker.ledger import Ledger
    from ccs_broker.transport.claims import ClaimTable, Key

logger = logging.getLogger(__name__)


def hand_back_strays(ledger: Ledger, claims: ClaimTable) -> int:
    """Look once; for the thread that claims, so that no claim is on its way meanwhile. Returns how many there were.

    Errors of the server pass through; the look is then still due.
    """
    name = claims.profile.name
    if name == NAMELESS:
        # Consumers without a name of their own can't tell whose a claim is.
        claims.doubts = 0
        return 0
    entries = cast("list[bytes]", ledger.redis.zrange(topology.RUNNING, 0, -1))
    unknown = [key for entry in entries if not claims.holds(key := topology.split_run_entry(entry.decode()))]
    with ledger.redis.pipeline(transaction=False) as pipe:
        for job_id, _ in unknown:
            pipe.hget(topology.JOB + job_id, "worker")
        owners = pipe.execute()
    strays: list[Key] = [key for key, owner in zip(unknown, owners, strict=True) if owner == name.encode()]
    for key in strays:
        ledger.release(*key)
    if strays:
        logger.info("%d claims whose replies were lost were handed back", len(strays))
    claims.doubts -= 1
    return len(strays)
