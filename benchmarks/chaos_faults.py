"""Injects the faults of a plan, one after another, as the load goes on; and writes down when and whom each hit."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis import Redis
from redis.exceptions import RedisError

from benchmarks.chaos_plan import FaultKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chaos_fleet import Fleet, Member
    from benchmarks.chaos_plan import Plan
    from ccs_broker.server import EmbeddedServer

#: Seconds a fault waits for a worker it may hit: one other must be healthy, so that there is one to recover on.
_VICTIM_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault as it happened. All runs on one machine, so its clock is the broker's."""

    kind: FaultKind
    at_ms: int
    #: When it was over: the server back, the worker thawed.
    until_ms: int
    #: Node name of the worker hit, or empty.
    worker: str = ""
    #: Job that was cancelled, or empty; and the state that the cancel answered.
    job: str = ""
    answer: str = ""


class Load(Protocol):
    """What faults need of the load."""

    @property
    def accepted(self) -> int:
        """Jobs acknowledged so far."""

    def add_poison(self) -> None:
        """Have a poison job submitted."""

    def cancel_one(self, chance: random.Random) -> tuple[str, str] | None:
        """Cancel some job under way; its id, and what the server answered."""


def now_ms() -> int:
    """The machine's clock, which is the broker's as well."""
    return int(time.time() * 1000)


class Injector:
    """Runs in a thread of its own until all faults are done, or it is told to stop."""

    def __init__(self, plan: Plan, server: EmbeddedServer, fleet: Fleet, load: Load) -> None:
        self._plan = plan
        self._server = server
        self._fleet = fleet
        self._load = load
        self._chance = random.Random(plan.seed + 2)
        self._timers: list[threading.Timer] = []
        self.faults: list[Fault] = []
        self.stop = threading.Event()

    @property
    def done(self) -> int:
        """Faults injected so far."""
        return len(self.faults)

    def run(self, kinds: Sequence[FaultKind]) -> None:
        """Inject one fault whenever its share of the jobs has been accepted."""
        share = self._plan.jobs / (len(kinds) + 1)
        for number, kind in enumerate(kinds, start=1):
            due = (number - self._chance.random() * 0.8) * share
            while self._load.accepted < due:
                if self.stop.wait(0.02):
                    return
            self._inject(kind)
        for timer in self._timers:
            timer.join()

    def _inject(self, kind: FaultKind) -> None:
        match kind:
            case FaultKind.SERVER:
                self._kill_server()
            case FaultKind.CONNECTIONS:
                self._kill_connections()
            case FaultKind.POISON:
                self._load.add_poison()
                self._note(kind)
            case FaultKind.CANCEL:
                self._cancel()
            case _:
                self._hit_worker(kind)

    def _note(self, kind: FaultKind, at_ms: int | None = None, **fields: Any) -> None:
        at_ms = now_ms() if at_ms is None else at_ms
        fields.setdefault("until_ms", now_ms())
        self.faults.append(Fault(kind=kind, at_ms=at_ms, **fields))

    def _kill_server(self) -> None:
        at_ms = now_ms()
        self._server.kill()
        time.sleep(self._chance.uniform(0.1, 1.0))
        self._server.start()
        self._note(FaultKind.SERVER, at_ms)

    def _kill_connections(self) -> None:
        """All ordinary connections, all subscribers, or a random half of everything."""
        at_ms = now_ms()
        what = self._chance.choice(("normal", "pubsub", "half"))
        try:
            with Redis.from_url(self._server.url, socket_timeout=5.0) as admin:
                if what == "half":
                    own = admin.client_id()
                    for client in admin.client_list():
                        if int(client["id"]) != own and self._chance.random() < 0.5:
                            admin.client_kill_filter(_id=client["id"])
                else:
                    admin.execute_command("CLIENT", "KILL", "TYPE", what, "SKIPME", "yes")
        except RedisError:
            # A half-closed list: whoever was on it is gone already.
            pass
        self._note(FaultKind.CONNECTIONS, at_ms, answer=what)

    def _cancel(self) -> None:
        deadline = time.monotonic() + _VICTIM_LIMIT_S
        while time.monotonic() < deadline and not self.stop.is_set():
            at_ms = now_ms()
            found = self._load.cancel_one(self._chance)
            if found is not None:
                self._note(FaultKind.CANCEL, at_ms, job=found[0], answer=found[1])
                return
            time.sleep(0.05)

    def _hit_worker(self, kind: FaultKind) -> None:
        member = self._victim()
        if member is None:
            return
        at_ms = now_ms()
        match kind:
            case FaultKind.WORKER_KILL:
                self._fleet.kill(member)
            case FaultKind.DRAIN:
                self._fleet.terminate(member)
            case FaultKind.ENGINE_KILL:
                while not self._fleet.kill_engine(member, self._chance.choice) and not self.stop.wait(0.05):
                    at_ms = now_ms()
            case _:
                frozen_s = self._plan.lease_s + self._chance.uniform(0.5, 2.0)
                self._fleet.freeze(member)
                timer = threading.Timer(frozen_s, self._fleet.thaw, (member,))
                timer.start()
                self._timers.append(timer)
                self._note(kind, at_ms, worker=member.node, until_ms=at_ms + int(frozen_s * 1000))
                return
        self._note(kind, at_ms, worker=member.node)

    def _victim(self) -> Member | None:
        deadline = time.monotonic() + _VICTIM_LIMIT_S
        while time.monotonic() < deadline and not self.stop.is_set():
            healthy = self._fleet.healthy()
            if len(healthy) > 1:
                return self._chance.choice(healthy)
            time.sleep(0.05)
        return None
