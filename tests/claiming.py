"""A ledger under a clock of the test's own, and short words for what tests of the scheduling do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import redis

from ccs_broker import topology
from ccs_broker.contract import Overload, QosClass
from ccs_broker.contract.outcome import OutcomeState
from ccs_broker.ledger import Claim, ClaimWish, Ending, Entry, Ledger, Need, NotClaimed, Pool, Room, Sizes
from ccs_broker.policy import POLICIES
from ccs_broker.priority import Work, urgency
from ccs_broker.scripts import virtual_time_scripts
from ccs_broker.settings import LedgerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

START_MS = 1_800_000_000_000


class Desk:
    """Publishes and claims; time stands still but where the test moves it."""

    def __init__(self, url: str, **settings: object) -> None:
        self.redis = redis.Redis.from_url(url)
        self.settings = LedgerSettings(**{"lease_s": 1e6, **settings})
        self.ledger = Ledger(self.redis, self.settings, virtual_time_scripts())
        self.now_ms = START_MS
        self.go(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.delete("ccs:clock")
        self.redis.close()

    def go(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000)
        self.redis.set("ccs:clock", self.now_ms * 1000)

    def publish(
        self,
        job_id: str,
        qos: str = "standard",
        *,
        tenant: str = "default",
        first_s: float = 0.05,
        cost_s: float | None = None,
        queue: str = "ccs.text",
        model: str = "",
        memory: int = 0,
        overload: str = "relegate",
        deadline_s: float | None = None,
    ) -> str:
        """Publish a job that needs ``memory`` bytes, by the need that :meth:`wish` states; the status."""
        first_us = round(first_s * 1e6)
        entry = Entry(
            id=job_id,
            queue=queue,
            model=model,
            payload=b"{}",
            tenant=tenant,
            overload=Overload(overload),
            urgency=urgency(
                QosClass(qos), deadline_s, policy=POLICIES[self.settings.policy], overload=Overload(overload)
            ),
            work=Work(first_us=first_us, cost_us=first_us if cost_s is None else round(cost_s * 1e6)),
            sizes=Sizes(media_bytes=memory),
            expire_ms=round((deadline_s or 7 * 86400) * 1000),
        )
        return self.ledger.publish(entry).status.value

    def claim(self, queue: str = "ccs.text", **wish: object) -> Claim | NotClaimed | None:
        """Pop a ticket and claim; None where no ticket lies."""
        if self.redis.rpop(topology.tickets_of(queue)) is None:
            return None
        return self.ledger.claim(ClaimWish(**{"popped": queue, "queues": (queue,), "worker": "w", **wish}))

    def claims(self, number: int, **wish: object) -> list[str]:
        """Ids of so many jobs, claimed one after another."""
        found = [self.claim(**wish) for _ in range(number)]
        assert all(isinstance(claim, Claim) for claim in found), found
        return [claim.id for claim in found]

    def finish(self, claim: Claim, actual_us: int | None = None) -> None:
        """End a claimed job."""
        ending = Ending(state=OutcomeState.SUCCEEDED, outcome="{}", actual_us=actual_us)
        assert self.ledger.finish(claim.id, claim.attempt, ending)

    def end_all(self, job_ids: Iterable[str]) -> None:
        """Cancel what waits."""
        for job_id in job_ids:
            self.ledger.cancel(job_id, "waiting")


def room(free: int, total: int = 1000) -> Room:
    """Memory of which jobs need their ``media_bytes``."""
    need = Need(coefficients=(0.0, 0.0, 0.0, 0.0, 1.0))
    queues = {(queue, model): need for queue in topology.QUEUES for model in ("", "a", "b")}
    return Room(pools=(Pool(free_bytes=free, total_bytes=total),), need=queues)
