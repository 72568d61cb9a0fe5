"""The same load and the same kinds of faults on stock Celery: what is lost there, and what runs twice."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery import Celery
from kombu.exceptions import KombuError
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.chaos_faults import Injector
from benchmarks.chaos_fleet import Fleet, WorkerKind
from benchmarks.chaos_plan import make_faults, make_wishes
from benchmarks.chaos_run import SERVER_CONFIG, showing
from benchmarks.chaos_stock_app import BEGUN, ENDED, READY, VISIBILITY_S
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from benchmarks.chaos_plan import Plan, Wish

_POLL_S: Final = 0.1
#: Seconds without any end after which what is open counts as lost: two visibility timeouts, and Kombu's back-off.
_SILENCE_S: Final = 2 * VISIBILITY_S + 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StockResult:
    """What became of stock tasks."""

    accepted: int
    faults: int
    lost: int
    ended_twice: int
    begun_twice: int
    complaints: int
    elapsed_s: float


class StockLoad:
    """Sends stock tasks at an even pace: what is lost for good must not hold up what follows."""

    def __init__(self, plan: Plan, url: str, load_s: float) -> None:
        self._plan = plan
        self._load_s = load_s
        self._app = Celery("chaos_stock", broker=url, set_as_current=False)
        self._app.conf.update(task_default_queue="stock", task_ignore_result=True)
        self._redis = Redis.from_url(url, socket_timeout=5.0)
        self._sent: set[int] = set()
        self._ended = 0
        self.stop = threading.Event()

    @property
    def accepted(self) -> int:
        """Tasks whose sending returned."""
        return len(self._sent)

    @property
    def open_jobs(self) -> int:
        """Tasks that have not marked an end."""
        return max(0, len(self._sent) - self._ended)

    def add_poison(self) -> None:
        """Stock workers have no engines."""

    def cancel_one(self, chance: random.Random) -> tuple[str, str] | None:
        """Nor can they stop what runs on threads."""

    def run(self, wishes: Sequence[Wish]) -> None:
        """Send all."""
        begun = time.monotonic()
        for wish in wishes:
            due = begun + wish.number * self._load_s / self._plan.jobs
            if self.stop.wait(max(0.0, due - time.monotonic())):
                return
            self._send(wish)

    def _send(self, wish: Wish) -> None:
        task_id = str(uuid.uuid4())
        while not self.stop.is_set():
            try:
                self._app.send_task(
                    "stock.work", args=[wish.number, wish.tokens * self._plan.step_s], task_id=task_id
                )
            except (RedisError, KombuError, OSError):
                time.sleep(_POLL_S)
                continue
            self._sent.add(wish.number)
            return

    def poll(self) -> None:
        """Count what has ended."""
        try:
            self._ended = int(self._redis.hlen(ENDED))
        except (RedisError, OSError):
            return

    def settle(self) -> None:
        """Wait until all have ended, or nothing has for long."""
        since, left = time.monotonic(), self.open_jobs
        while self.open_jobs and time.monotonic() < since + _SILENCE_S:
            self.poll()
            if self.open_jobs < left:
                since, left = time.monotonic(), self.open_jobs
            time.sleep(_POLL_S)

    def reckon(self, faults: int, complaints: int, elapsed_s: float) -> StockResult:
        """Read all marks."""
        begun = {int(key): int(value) for key, value in self._redis.hgetall(BEGUN).items()}
        ended = {int(key): int(value) for key, value in self._redis.hgetall(ENDED).items()}
        return StockResult(
            accepted=len(self._sent),
            faults=faults,
            lost=sum(number not in ended for number in self._sent),
            ended_twice=sum(count > 1 for count in ended.values()),
            begun_twice=sum(count > 1 for count in begun.values()),
            complaints=complaints,
            elapsed_s=elapsed_s,
        )

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        self._app.close()


def run_stock(plan: Plan, folder: Path, console: Console, load_s: float) -> StockResult:
    """Give stock workers as many tasks of the same lengths in the same time, and as many faults of their kinds.

    Args:
        plan: the plan of our run.
        folder: for the workers' logs.
        console: for the progress.
        load_s: seconds over which our run submitted its jobs.
    """
    begun, kinds = time.monotonic(), make_faults(plan, stock=True)
    with EmbeddedServer(appendonly=True, config=SERVER_CONFIG) as server:
        fleet = Fleet(server.url, _stock_worker(server.url, plan.slots), _folder(folder), plan.workers)
        load = StockLoad(plan, server.url, load_s)
        injector = Injector(plan, server, fleet, load)
        try:
            fleet.start()
            threads = [
                threading.Thread(target=load.run, args=(make_wishes(plan),), daemon=True),
                threading.Thread(target=injector.run, args=(kinds,), daemon=True),
            ]
            for thread in threads:
                thread.start()
            with showing(console, plan.jobs, len(kinds)) as show:
                deadline = time.monotonic() + plan.most_s
                while any(thread.is_alive() for thread in threads):
                    if time.monotonic() > deadline:
                        load.stop.set()
                        injector.stop.set()
                    load.poll()
                    show(load.accepted, injector.done, load.open_jobs)
                    time.sleep(_POLL_S)
                load.settle()
        finally:
            fleet.stop()
        result = load.reckon(injector.done, len(fleet.complaints), time.monotonic() - begun)
        load.close()
    return result


def _folder(folder: Path) -> Path:
    """Logs of the stock workers lie beside those of ours, whose names are the same."""
    own = folder / "stock"
    own.mkdir(exist_ok=True)
    return own


def _stock_worker(url: str, slots: int) -> WorkerKind:
    def command(name: str) -> list[str]:
        return [
            sys.executable, "-m", "celery", "-A", "benchmarks.chaos_stock_app", "worker", "-l", "WARNING",
            "--hostname", f"{name}@%h", "--without-mingle", "--without-gossip",
        ]  # fmt: skip

    return WorkerKind(
        command=command,
        ready_key=lambda node: READY + node,
        is_ready=bool,
        environment={"CCS_REDIS_URL": url, "CCS_BENCH_SLOTS": str(slots)},
    )
