"""What this worker process holds: one table of claims, shared by the consuming loop, the threads and the keeper."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Literal

from redis.exceptions import RedisError

from ccs_broker.ledger import ClaimWish
from ccs_broker.ledger.faults import fault_word, is_transient
from ccs_broker.transport.profile import WorkerProfile, sizes_of_claim

if TYPE_CHECKING:
    from ccs_broker.ledger import Blocked, Claim, Ledger, Room
    from ccs_broker.ledger.records import AttemptState

logger = logging.getLogger(__name__)

Key = tuple[str, int]
#: What the ledger is told when Celery is done with a delivery.
Settling = Literal["ack", "release"]
#: Called with what the ledger says of an attempt when that isn't "ok".
Notice = Callable[["AttemptState"], None]


#: Looks for lost claims after one whose reply didn't come: a server that was frozen may still be at it at the first.
_LOOKS: Final = 2


class _Phase(Enum):
    DELIVERED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True)
class _Held:
    claim: Claim
    phase: _Phase
    since: float
    notice: Notice | None = None
    #: The finish script has ended the job, and the lease with it.
    finished: bool = False
    #: Set where the finish script has ended the job, but Celery has something to do after it: the state with which
    #: Celery ends the task if it could do that.
    links: str = ""
    linked: bool = False
    #: The worker couldn't do the job: another one is to.
    handed_back: bool = False
    #: Celery was told to revoke it.
    stopped: bool = False


class ClaimTable:
    """Thread-safe table of the claims this process holds.

    A claim counts against slots from its delivery until its thread has ended it. Its lease is renewed while its
    thread runs, and for a bounded time before and after, so that a delivery that leaks loses its lease.
    """

    def __init__(self, grace_s: float = 30.0) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._held: dict[Key, _Held] = {}
        #: Settled in Celery's eyes, but not yet in the ledger: it couldn't be told.
        self._owed: dict[Key, Settling] = {}
        self._answered = time.monotonic()
        self._blocked: tuple[Blocked, float] | None = None
        self.profile = WorkerProfile()
        self._open = True
        #: How often the ledger is still to be asked for claims that it has given and this process never received.
        self.doubts = 0
        #: Times that there was more room than before: a claim ended, a model was loaded.
        self.growths = 0
        self._at_growth: list[Callable[[], None]] = []

    def close(self) -> None:
        """Take no more claims: the worker shuts down."""
        self._open = False

    @property
    def closed(self) -> bool:
        """True once no more claims are taken."""
        return not self._open

    def answered(self, blocked: Blocked | None = None) -> None:
        """The ledger has answered a claim, with a job or without; ``blocked`` only lacks memory."""
        self._answered = time.monotonic()
        self._blocked = (blocked, self._answered) if blocked is not None else None

    def blocked(self, within_s: float) -> Blocked | None:
        """The best job that lacked nothing but memory at the last claim, if that was so lately."""
        found = self._blocked
        return found[0] if found is not None and time.monotonic() - found[1] <= within_s else None

    def wish(self, popped: str, queues: tuple[str, ...], *, nudged: bool = False) -> ClaimWish:
        """What this worker offers to take, woken by one queue and with room in these.

        Where each queue has a part of its own, that is the one that woke it.
        """
        profile = self.profile
        static = profile.rules is not None and profile.rules.is_static
        return ClaimWish(
            popped=popped,
            queues=(popped,) if static or not queues else queues,
            worker=profile.name,
            models=profile.models,
            room=self.room(popped),
            nudged=nudged,
        )

    def room(self, queue: str) -> Room | None:
        """Free memory: that of the queue's own part, or of all; None if memory is no bound."""
        rules, memory = self.profile.rules, self.profile.memory
        if memory is None:
            return None
        return memory.room(queue, rules.share_of(queue) if rules is not None else 1.0)

    def offering(self) -> AbstractContextManager[None]:
        """From the wish to the end of the claim: what it was told of memory stays true meanwhile."""
        return nullcontext() if self.profile.memory is None else self.profile.memory.offering()

    def doubt(self) -> None:
        """A claim's reply didn't come: the ledger may believe that this worker holds a job."""
        self.doubts = _LOOKS

    def holds(self, key: Key) -> bool:
        """True while this process holds a claim, or owes the ledger its end."""
        with self._lock:
            return key in self._held or key in self._owed

    @property
    def silent_s(self) -> float:
        """Seconds since the ledger answered a claim."""
        return time.monotonic() - self._answered

    def add(self, claim: Claim) -> None:
        """A claim was received and goes to Celery."""
        key = (claim.id, claim.attempt)
        memory = self.profile.memory
        if memory is not None and (found := sizes_of_claim(claim)) is not None:
            memory.reserve(key, claim.queue, *found)
        with self._lock:
            self._held[key] = _Held(claim, _Phase.DELIVERED, time.monotonic())

    def begin(self, key: Key) -> Claim | None:
        """A thread starts to work on a claim; None if the claim isn't held (any more)."""
        with self._lock:
            held = self._held.get(key)
            if held is None or held.phase is _Phase.ENDED:
                return None
            held.phase, held.since = _Phase.RUNNING, time.monotonic()
            return held.claim

    def watch(self, key: Key, notice: Notice) -> None:
        """Ask to be told when the ledger says an attempt is lost, cancelled or expired."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.notice = notice
        if held is not None and held.stopped:
            notice("cancelling")

    def stop(self, key: Key) -> None:
        """Cancel a claim from within this process, whether its thread has begun or not."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.stopped = True
            notice = held.notice if held is not None else None
        if notice is not None:
            notice("cancelling")

    def mark_finished(self, key: Key, *, links: str = "") -> None:
        """The finish script has ended the job: its ack needs no round trip, unless something is to follow.

        Args:
            key: the claim.
            links: the state with which Celery will end the task if it could do what follows; empty if nothing does.
        """
        with self._lock:
            if (held := self._held.get(key)) is not None:
                held.finished, held.links = not links, links

    def mark_linked(self, key: Key, state: str) -> None:
        """Celery has ended the task with a state, after all that follows it."""
        with self._lock:
            if (held := self._held.get(key)) is not None:
                held.linked = state == held.links

    def end(self, key: Key) -> None:
        """The thread is done; slot and memory are free, the ack may still be on its way."""
        with self._lock:
            if (held := self._held.get(key)) is not None:
                held.phase, held.since, held.notice = _Phase.ENDED, time.monotonic(), None
        self._free(key)
        self.grown()

    def _free(self, key: Key) -> None:
        if (memory := self.profile.memory) is not None:
            memory.release(key)

    def grown(self) -> None:
        """There may be more room than before. From any thread."""
        with self._lock:
            self.growths += 1
            callbacks, self._at_growth = self._at_growth, []
        for callback in callbacks:
            callback()

    def at_next_growth(self, callback: Callable[[], None]) -> None:
        """Call once when there may be more room, from the thread that made it; it mustn't raise."""
        with self._lock:
            self._at_growth = [callback]

    def hand_back(self, key: Key) -> None:
        """The attempt ended without an outcome: at its end the ledger gets the job back, if it is still held."""
        with self._lock:
            if (held := self._held.get(key)) is not None:
                held.handed_back = True

    def settle(self, key: Key, ledger: Ledger, how: Settling = "ack") -> None:
        """Celery is done with a delivery: tell the ledger, or owe it to the ledger while that is away."""
        with self._lock:
            if (held := self._held.get(key)) is not None and held.handed_back:
                how = "release"
        if not self.remove(key) or how == "release":
            with self._lock:
                self._owed[key] = how
            self._pay(key, how, ledger)

    def pay(self, ledger: Ledger) -> None:
        """Tell the ledger what it is still owed."""
        with self._lock:
            owed = list(self._owed.items())
        for key, how in owed:
            if not self._pay(key, how, ledger):
                return

    def _pay(self, key: Key, how: Settling, ledger: Ledger) -> bool:
        try:
            if how == "ack":
                ledger.ack(*key)
            else:
                ledger.release(*key)
        except (RedisError, OSError) as error:
            if is_transient(error):
                logger.info("the %s of job %s waits for the server (%s)", how, key[0], fault_word(error))
                return False
            logger.error("the %s of job %s was refused: %s", how, key[0], fault_word(error))
        with self._lock:
            self._owed.pop(key, None)
        return True

    def remove(self, key: Key) -> bool:
        """Forget a claim; True if its ack is to be left out.

        That is where the finish script has ended job and lease, and where what follows the job in Celery wasn't
        done: then the lease runs out, and another delivery does it.
        """
        self._free(key)
        with self._lock:
            held = self._held.pop(key, None)
        return held is not None and (held.finished or (bool(held.links) and not held.linked))

    def take_unstarted(self, keys: Sequence[Key]) -> list[Key]:
        """Remove, of these, the claims no thread has begun: they can go back to the ledger."""
        with self._lock:
            unstarted = [k for k in keys if k in self._held and self._held[k].phase is _Phase.DELIVERED]
            for key in unstarted:
                del self._held[key]
        for key in unstarted:
            self._free(key)
        return unstarted

    def renewable(self) -> list[Key]:
        """Claims whose lease must be prolonged now."""
        oldest = time.monotonic() - self._grace_s
        with self._lock:
            return [
                key
                for key, held in self._held.items()
                if held.phase is _Phase.RUNNING or (held.since >= oldest and not held.finished)
            ] + list(self._owed)

    def tell(self, keys: Sequence[Key], states: Sequence[AttemptState]) -> None:
        """Pass on what the ledger said about attempts."""
        for key, state in zip(keys, states, strict=True):
            if state == "ok":
                continue
            with self._lock:
                notice = held.notice if (held := self._held.get(key)) else None
            if notice is not None:
                notice(state)

    def busy(self) -> int:
        """Claims that occupy a slot."""
        with self._lock:
            return sum(held.phase is not _Phase.ENDED for held in self._held.values())

    def has_slot(self) -> bool:
        """True while another claim may be taken."""
        return self._open and self._below_slots()

    def _below_slots(self) -> bool:
        return self.profile.slots is None or self.busy() < self.profile.slots

    def has_room(self, queue: str) -> bool:
        """True while another claim of this queue may be taken."""
        rules = self.profile.rules
        return rules is None or rules.has_room(queue, self.busy_by_queue())

    def busy_by_queue(self) -> dict[str, int]:
        """Claims that occupy a slot, by queue."""
        with self._lock:
            return Counter(held.claim.queue for held in self._held.values() if held.phase is not _Phase.ENDED)


#: One process is one worker, so there is one table; Kombu builds channels itself and offers no other seam.
CLAIMS: Final = ClaimTable()
