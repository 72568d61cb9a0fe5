"""What a claim costs with 1,000, 100,000 and 1,000,000 waiting jobs, all in one run, and what a waiting job takes.

``python -m benchmarks.claim_cost``. The three depths lie in three databases of one server, and are claimed from in
turn, so that whatever else the machine does meets all of them alike. Jobs of several queues, models, classes and
tenants wait; each claim is one round trip, of a worker with memory for any of them. Growth is the bar; the times are
this machine's.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, cast

from redis import Redis

from benchmarks.report import Figure, percentile, show
from ccs_broker import topology
from ccs_broker.contract import QosClass
from ccs_broker.contract.outcome import OutcomeState
from ccs_broker.ledger import Claim, ClaimWish, Ending, Entry, Ledger, Need, Pool, Room, Sizes
from ccs_broker.priority import Work, urgency
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITING: Final = (1_000, 100_000, 1_000_000)
CLAIMS: Final = 3_000
QUEUES: Final = topology.QUEUES[:3]
MODELS: Final = ("", "a", "b")
MOST_GROWTH: Final = 1.5
_CHUNK: Final = 2_000
#: About what a job of a short prompt comes to.
_PAYLOAD: Final = b"x" * 320
_NEED: Final = {
    (queue, model): Need(coefficients=(1e6, 10.0, 1e3, 0.0, 0.0)) for queue in QUEUES for model in MODELS
}
_ROOM: Final = Room(pools=(Pool(free_bytes=10**9, total_bytes=10**9),), need=_NEED)


def entries(number: int, pick: random.Random) -> Iterator[Entry]:
    """So many jobs; none of them can become late, so that every claim does the same work."""
    for _ in range(number):
        first_us = pick.randrange(1_000, 2_000_000)
        qos = pick.choice((QosClass.STANDARD, QosClass.BATCH))
        yield Entry(
            id=f"{pick.getrandbits(128):032x}",
            queue=pick.choice(QUEUES),
            urgency=urgency(qos, None),
            payload=_PAYLOAD,
            model=pick.choice(MODELS),
            tenant=f"tenant{pick.randrange(20)}",
            sizes=Sizes(prompt_chars=100, new_tokens=128),
            work=Work(first_us=first_us, cost_us=2 * first_us),
        )


def fill(ledger: Ledger, number: int, pick: random.Random) -> float:
    """Let so many jobs wait; the bytes that each takes in the server."""
    before = int(cast("dict[str, int]", ledger.redis.info("memory"))["used_memory"])
    made = entries(number, pick)
    for _ in range(0, number, _CHUNK):
        ledger.run_many([ledger.calls.publish(entry) for entry, _ in zip(made, range(_CHUNK), strict=False)])
    after = int(cast("dict[str, int]", ledger.redis.info("memory"))["used_memory"])
    return (after - before) / number


def time_claim(ledger: Ledger, entry: Entry) -> float:
    """Seconds of one claim; the job taken is ended and another one published, so that as many wait."""
    queue = next(q for q in QUEUES if ledger.redis.rpop(topology.tickets_of(q)))
    wish = ClaimWish(popped=queue, queues=QUEUES, worker="bench", models=MODELS[1:], room=_ROOM)
    begun = time.perf_counter()
    claim = ledger.claim(wish)
    seconds = time.perf_counter() - begun
    if not isinstance(claim, Claim):
        raise TypeError(f"no job was claimed: {claim}")
    ledger.finish(claim.id, claim.attempt, Ending(state=OutcomeState.SUCCEEDED, outcome="{}"))
    ledger.publish(entry)
    return seconds


def main() -> bool:
    """Fill, time and print; True if claims cost hardly more with a thousand times as many jobs waiting."""
    pick = random.Random(4)
    seconds: dict[int, list[float]] = {depth: [] for depth in WAITING}
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        ledgers = {}
        for database, depth in enumerate(WAITING):
            redis = Redis.from_url(server.url, db=database, socket_timeout=120)
            ledgers[depth] = Ledger(stack.enter_context(redis))
            bytes_each = fill(ledgers[depth], depth, pick)
        for entry in entries(CLAIMS, pick):
            for depth, ledger in ledgers.items():
                seconds[depth].append(time_claim(ledger, entry))
    figures = [
        Figure(name=f"claim p{percent}, {depth:,} waiting", value=1e6 * percentile(found, percent), unit="us")
        for depth, found in seconds.items()
        for percent in (50, 99)
    ]
    least, *_, most = (percentile(found, 99) for found in seconds.values())
    figures += [
        Figure(name="p99, growth to 1,000,000", value=most / least, unit="x", bar=MOST_GROWTH, at_most=True),
        Figure(name="memory per waiting job, its payload 320 of it", value=bytes_each, unit="B"),
    ]
    return show(f"{CLAIMS} claims at each depth, in turn", figures)


if __name__ == "__main__":
    sys.exit(not main())
