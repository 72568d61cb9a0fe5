"""The memory ledger of one device: engines and jobs hold bytes of a budget, and claims are told what is left.

An engine holds its footprint from before it is loaded until its process is gone. A claimed job reserves what a linear
estimate says of jobs of its sizes; once its engine has seen it, the exact need takes the place of the estimate. A need
that turns out larger is granted as soon as there is room, before any new claim; until then the engine holds the job.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ccs_broker.ledger import Need, Pool, Room
from ccs_workers.admission.accounts import EngineAccount, Loan, bytes_of
from ccs_workers.admission.records import NOTHING, EngineHolding, Holdings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccs_workers.admission.records import Borrower, Footprint, Key

__all__ = ["MemoryLedger"]

logger = logging.getLogger(__name__)

#: Stands for "no bound" towards the broker, whose numbers are doubles.
_UNBOUNDED: Final = 2**52


class MemoryLedger:
    """Thread-safe; see ``ccs_broker.transport.Memory`` for what the transport asks of it."""

    def __init__(self, budget_bytes: int | None, lanes: Mapping[tuple[str, str], str]) -> None:
        """Divide a budget.

        Args:
            budget_bytes: memory for engines and jobs together; None: unknown, and so no bound.
            lanes: by queue and model alias as jobs name it ("" for none), the alias of the engine that serves them.
        """
        self._budget_bytes = budget_bytes
        self._lanes = dict(lanes)
        self._lock = threading.RLock()
        self._offer = threading.Lock()
        self._engines: dict[str, EngineAccount] = {}
        self._loans: dict[Key, Loan] = {}
        self._wanting: deque[Key] = deque()
        self._unused: dict[str, threading.Event] = {}
        #: Called, without the lock, whenever there may be more room for claims than before.
        self.on_room: Callable[[], None] = lambda: None

    # Engines.

    def take(self, alias: str, footprint: Footprint) -> bool:
        """Let an engine hold memory before it is loaded; false, and nothing held, if there isn't as much now."""
        with self._offer, self._lock:
            held = self._engines.get(alias)
            back = held.fixed_bytes if held is not None else 0
            if footprint.fixed_bytes > self._free_bytes() + back:
                return False
            self._engines[alias] = EngineAccount(footprint, held.need if held is not None else None)
            return True

    def admit(self, alias: str, footprint: Footprint, need: tuple[float, float, float, float, float]) -> None:
        """An engine has been loaded, with this footprint as measured: its jobs may be claimed."""
        with self._lock:
            self._engines[alias] = EngineAccount(footprint, need)
        self._settle()

    def suspend(self, alias: str) -> None:
        """Take no new jobs for an engine; those that run go on."""
        with self._lock:
            if (engine := self._engines.get(alias)) is not None:
                engine.need = None

    def drop(self, alias: str) -> None:
        """An engine's process is gone."""
        with self._lock:
            self._engines.pop(alias, None)
        self._settle()

    def could_take(self, footprint: Footprint, without: Sequence[str] = ()) -> bool:
        """Whether an engine would fit if these others were gone."""
        with self._lock:
            back = sum(self._engines[alias].fixed_bytes for alias in without if alias in self._engines)
            return footprint.fixed_bytes <= self._free_bytes() + back

    def when_unused(self, alias: str) -> threading.Event:
        """Set once no job is an engine's, not even one whose thread hasn't begun; to be asked for after ``suspend``."""
        with self._lock:
            unused = self._unused[alias] = threading.Event()
            self._tell_unused()
            return unused

    def inflate(self, alias: str, factor: float) -> None:
        """A job's memory wasn't enough though its need was granted: expect more of the next ones."""
        with self._lock:
            engine = self._engines.get(alias)
            if engine is not None and engine.need is not None:
                one, chars, tokens, images, media = engine.need
                engine.need = (one * factor, chars * factor, tokens * factor, images * factor, media * factor)

    def observe(self, alias: str, peak_bytes: int) -> None:
        """An engine's process told its highest use since it last did; what nobody reserved is held from now on."""
        with self._lock:
            if (engine := self._engines.get(alias)) is None:
                return
            before = engine.beyond_bytes
            engine.observe(peak_bytes, self._jobs_bytes(alias))
            fell = engine.beyond_bytes < before
        if fell:
            self._settle()

    def rebudget(self, budget_bytes: int | None) -> None:
        """Others have taken memory of the device, or given it back."""
        with self._lock:
            if budget_bytes == self._budget_bytes:
                return
            self._budget_bytes = budget_bytes
        self._settle()

    # Jobs; the first five are the transport's.

    def room(self, queue: str, share: float) -> Room:
        """See ``ccs_broker.transport.Memory``."""
        with self._lock:
            pools, numbers = [self._shared_pool(queue, share)], dict[str, int]()
            for alias, engine in self._engines.items():
                if engine.footprint.pool_bytes:
                    numbers[alias] = len(pools)
                    pools.append(self._own_pool(alias, engine))
            need: dict[tuple[str, str], Need | None] = {}
            for lane, alias in self._lanes.items():
                here = self._engines.get(alias)
                told = here.need if here is not None else None
                need[lane] = None if told is None else Need(coefficients=told, pool=numbers.get(alias, 0))
        return Room(pools=tuple(pools), need=need)

    @contextmanager
    def offering(self) -> Iterator[None]:
        """See ``ccs_broker.transport.Memory``."""
        with self._offer:
            yield

    def reserve(self, key: Key, queue: str, model: str, sizes: Sequence[int]) -> int:
        """See ``ccs_broker.transport.Memory``."""
        need_bytes = self.bytes_for(queue, model, sizes)
        with self._lock:
            loan = Loan(queue=queue, alias=self._lanes.get((queue, model), ""), reserved_bytes=0)
            # One that was expected to need more than there is has been given everything.
            loan.reserved_bytes = min(need_bytes, max(0, self._total_of(loan)))
            self._loans[key] = loan
            self._note(loan.alias)
            return loan.reserved_bytes

    def release(self, key: Key) -> None:
        """See ``ccs_broker.transport.Memory``."""
        with self._lock:
            if self._loans.pop(key, None) is None:
                return
            if key in self._wanting:
                self._wanting.remove(key)
            self._tell_unused()
        self._settle()

    def bytes_for(self, queue: str, model: str, sizes: Sequence[int]) -> int:
        """See ``ccs_broker.transport.Memory``."""
        with self._lock:
            engine = self._engines.get(self._lanes.get((queue, model), ""))
            coefficients = NOTHING if engine is None or engine.need is None else engine.need
        return Need(coefficients=coefficients).bytes_for(sizes)

    def room_without(self, key: Key, queue: str, model: str) -> Pool | None:
        """See ``ccs_broker.transport.Memory``."""
        with self._lock:
            alias = self._lanes.get((queue, model), "")
            engine, loan = self._engines.get(alias), self._loans.get(key)
            if engine is None or engine.need is None:
                return None
            own = engine.footprint.pool_bytes > 0
            pool = self._own_pool(alias, engine) if own else self._shared_pool(queue, 1.0)
            back = 0
            if loan is not None and (loan.alias == alias if own else not self._has_pool(loan.alias)):
                back = self._jobs_bytes(loan.alias) - self._jobs_bytes(loan.alias, without=key)
            return Pool(free_bytes=pool.free_bytes + back, total_bytes=pool.total_bytes)

    def reserved_bytes(self, key: Key) -> int | None:
        """What a job holds; None if it isn't known."""
        with self._lock:
            return loan.reserved_bytes if (loan := self._loans.get(key)) is not None else None

    def resize(self, key: Key, need_bytes: int, borrower: Borrower, step_bytes: int = 0) -> None:
        """A running job's exact need; ``borrower`` is told once it has it, from any thread, perhaps at once.

        ``step_bytes``: part of it that is there within one of the job's steps only.
        """
        with self._lock:
            loan = self._loans.get(key)
            if loan is None:
                return
            most_bytes = self._total_of(loan)
            if need_bytes <= most_bytes:
                loan.wanted_bytes, loan.wanted_step_bytes, loan.borrower = need_bytes, step_bytes, borrower
                if key not in self._wanting:
                    self._wanting.append(key)
        if need_bytes > most_bytes:
            borrower.refused(need_bytes, most_bytes)
        else:
            self._settle()

    def holdings(self) -> Holdings:
        """What is held now, by whom."""
        with self._lock:
            engines = tuple(
                EngineHolding(
                    alias=alias,
                    fixed_bytes=engine.fixed_bytes,
                    pool_bytes=engine.footprint.pool_bytes,
                    jobs_bytes=self._jobs_bytes(alias),
                    jobs={
                        key[0]: one.reserved_bytes for key, one in self._loans.items() if one.alias == alias
                    },
                    peak_bytes=engine.peak_bytes,
                    held_bytes=engine.held_bytes,
                )
                for alias, engine in self._engines.items()
            )
            free = None if self._budget_bytes is None else self._free_bytes()
            return Holdings(budget_bytes=self._budget_bytes, free_bytes=free, engines=engines)

    # The lock is held by whoever calls what follows, but for ``_settle``.

    def _jobs_bytes(self, alias: str, without: Key | None = None) -> int:
        return bytes_of(loan for key, loan in self._loans.items() if loan.alias == alias and key != without)

    def _note(self, alias: str) -> None:
        if (engine := self._engines.get(alias)) is not None:
            engine.note(self._jobs_bytes(alias))

    def _tell_unused(self) -> None:
        used = {loan.alias for loan in self._loans.values()}
        for alias in [one for one in self._unused if one not in used]:
            self._unused.pop(alias).set()

    def _has_pool(self, alias: str) -> bool:
        engine = self._engines.get(alias)
        return engine is not None and engine.footprint.pool_bytes > 0

    def _total_bytes(self) -> int:
        """Memory for jobs of engines without a pool."""
        if self._budget_bytes is None:
            return _UNBOUNDED
        return self._budget_bytes - sum(engine.fixed_bytes for engine in self._engines.values())

    def _free_bytes(self) -> int:
        return self._total_bytes() - self._bytes_on_top()

    def _bytes_on_top(self, queue: str | None = None) -> int:
        """What jobs, of one queue or all, hold of the memory for engines without a pool."""
        by_engine: dict[str, list[Loan]] = {}
        for loan in self._loans.values():
            if not self._has_pool(loan.alias) and queue in {None, loan.queue}:
                by_engine.setdefault(loan.alias, []).append(loan)
        return sum(map(bytes_of, by_engine.values()))

    def _growth_of(self, key: Key) -> int:
        """By how much its engine's jobs hold more once a job has what it waits for."""
        loan = self._loans[key]
        others = [one for other, one in self._loans.items() if one.alias == loan.alias and other != key]
        return bytes_of([*others, loan.wanted]) - bytes_of([*others, loan])

    def _free_of(self, loan: Loan) -> int:
        if not self._has_pool(loan.alias):
            return self._free_bytes()
        return self._own_pool(loan.alias, self._engines[loan.alias], offered=False).free_bytes

    def _total_of(self, loan: Loan) -> int:
        """The most that such a job could ever have, if all others went."""
        engine = self._engines.get(loan.alias)
        if engine is None or self._budget_bytes is None:
            return self._total_bytes()
        # By its footprint as told: a job isn't refused for good because of what was measured once.
        return engine.footprint.pool_bytes or self._budget_bytes - engine.footprint.fixed_bytes

    def _own_pool(self, alias: str, engine: EngineAccount, *, offered: bool = True) -> Pool:
        total = engine.footprint.pool_bytes
        used = self._jobs_bytes(alias)
        is_wanted = offered and any(self._loans[key].alias == alias for key in self._wanting)
        return Pool(free_bytes=0 if is_wanted else max(0, total - used), total_bytes=total)

    def _shared_pool(self, queue: str, share: float) -> Pool:
        total = max(0, int(self._total_bytes() * share))
        used = self._bytes_on_top(None if share == 1.0 else queue)
        is_wanted = any(not self._has_pool(self._loans[key].alias) for key in self._wanting)
        free = 0 if is_wanted else min(total - used, self._free_bytes())
        return Pool(free_bytes=max(0, free), total_bytes=total)

    def _settle(self) -> None:
        """Grant what there is room for, first come first served; tell that there may be room."""
        granted, back = [], []
        with self._lock:
            for key in list(self._wanting):
                loan = self._loans[key]
                if self._growth_of(key) > max(0, self._free_of(loan)):
                    continue
                self._wanting.remove(key)
                loan.reserved_bytes, loan.step_bytes = loan.wanted_bytes, loan.wanted_step_bytes
                self._note(loan.alias)
                granted.append(loan)
            if self._wanting and not granted:
                back = self._stuck()
        for loan in granted:
            if loan.borrower is not None:
                loan.borrower.granted(loan.reserved_bytes)
        for loan in back:
            if loan.borrower is not None:
                loan.borrower.hand_back()
        self.on_room()

    def _stuck(self) -> list[Loan]:
        """Of a pool in which every job waits for more, the last of them, if it isn't the only one."""
        last: dict[str, list[Key]] = {}
        for key in self._wanting:
            alias = self._loans[key].alias
            last.setdefault(alias if self._has_pool(alias) else "", []).append(key)
        back = []
        for pool, keys in last.items():
            members = [
                key
                for key, loan in self._loans.items()
                if (loan.alias == pool if pool else not self._has_pool(loan.alias))
            ]
            if len(members) == len(keys) > 1:
                logger.warning("all %d jobs wait for more memory: one is handed back", len(keys))
                back.append(self._loans[keys[-1]])
        return back
