"""The engines of a run, each in its process as in a worker, and the loop that feeds jobs and waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Protocol

from ccs_broker.errors import EngineError, EngineLostError
from ccs_workers.executor.handle import EngineHandle

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ccs_workers.engines.protocol import EngineInfo, EngineJob, EngineOutput
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.verify.trail import Trail

__all__ = ["Bench", "EngineProcess", "Starter"]


class EngineProcess(Protocol):
    """What is used of an ``EngineHandle``."""

    info: EngineInfo | None

    def start(self) -> EngineInfo: ...
    def submit(self, job: EngineJob) -> None: ...
    def cancel(self, key: str) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


#: Makes the process of a model; it is started afterwards. Arguments as of ``EngineHandle``.
Starter = Callable[
    ["ModelSpec", Callable[[Sequence[tuple[str, "EngineOutput"]]], None], Callable[[str], None]],
    EngineProcess,
]


class _Station:
    """One engine, and the jobs it works on."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.handle: EngineProcess | None = None
        self.live: dict[str, Trail] = {}
        #: How its process ended.
        self.death: str | None = None
        #: We have killed it ourselves.
        self.killed = False


class Bench:
    """All engines that the models need, loaded one after the other; a context manager that ends their processes."""

    def __init__(
        self, specs: Iterable[ModelSpec], *, patience_s: float, start: Starter = EngineHandle
    ) -> None:
        served = {spec.alias: spec.serving for spec in specs}
        stations = {spec.alias: _Station(spec) for spec in served.values()}
        self._stations = {alias: stations[spec.alias] for alias, spec in served.items()}
        self._start = start
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._news = False
        self._keys = count(1)
        #: Whose each key was, also of jobs that have ended.
        self._owners: dict[str, Trail] = {}
        #: Outputs under keys that nobody had.
        self.strays = 0

    def __enter__(self) -> Self:
        try:
            for station in set(self._stations.values()):
                self._load(station)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for station in set(self._stations.values()):
            if station.handle is not None:
                station.handle.close()

    def _load(self, station: _Station) -> None:
        station.handle = self._start(
            station.spec,
            lambda outputs: self._take(station, outputs),
            lambda how: self._died(station, how),
        )
        station.handle.start()

    def info(self, alias: str) -> EngineInfo:
        """What the engine of a model says of itself."""
        station = self._stations[alias]
        if station.handle is None or station.handle.info is None:
            raise EngineLostError(f"the engine of {alias!r} isn't running")
        return station.handle.info

    def drive(self, trails: Sequence[Trail], watch: Callable[[], None] = lambda: None) -> None:
        """Hand in all jobs at once, in this order, and wait until each has ended, continued wherever it was cut.

        ``watch`` is called whenever something was said.

        Raises:
            EngineLostError: an engine died that nobody had killed.
            EngineError: nothing came for so long that nothing will.
        """
        for trail in trails:
            self._submit(trail)
        pending = [trail for trail in trails if not trail.finished]
        while pending:
            with self._changed:
                if not self._changed.wait_for(lambda: self._news, self._patience_s):
                    raise EngineError(
                        f"{len(pending)} jobs, one of them {pending[0].check.name!r} of "
                        f"{pending[0].check.alias!r}, said nothing for {self._patience_s:.0f} s"
                    )
                self._news = False
            watch()
            self._revive()
            with self._changed:
                paused = [trail for trail in pending if trail.paused]
            for trail in paused:
                self._submit(trail)
            with self._changed:
                pending = [trail for trail in pending if not trail.finished]

    def kill(self, alias: str) -> None:
        """End the process of a model's engine at once; ``drive`` starts another one."""
        station = self._stations[alias]
        with self._changed:
            station.killed = True
        if station.handle is not None:
            station.handle.kill()

    def restart(self, alias: str) -> None:
        """Wait until a killed engine is known to be gone, and start another one unless that was done."""
        station = self._stations[alias]
        with self._changed:
            gone = self._changed.wait_for(
                lambda: station.death is not None or not station.killed, self._patience_s
            )
        if not gone:
            raise EngineError(f"the engine of {alias!r} was killed and nobody noticed")
        self._revive()

    def _revive(self) -> None:
        for station in set(self._stations.values()):
            with self._changed:
                death, killed = station.death, station.killed
            if death is None:
                continue
            if not killed:
                raise EngineLostError(f"the engine of {station.spec.alias!r} died ({death})")
            with self._changed:
                station.death, station.killed = None, False
            self._load(station)

    def _submit(self, trail: Trail) -> None:
        station = self._stations[trail.check.alias]
        with self._changed:
            job = trail.next_job(str(next(self._keys)))
            station.live[job.key] = self._owners[job.key] = trail
            if station.death is not None:
                self._lose(station)
                return
        assert station.handle is not None
        # If it is gone, its death is told by another thread, to all its jobs alike.
        with suppress(EngineLostError):
            station.handle.submit(job)

    def _take(self, station: _Station, outputs: Sequence[tuple[str, EngineOutput]]) -> None:
        cancels = []
        with self._changed:
            for key, output in outputs:
                trail = station.live.get(key)
                if trail is None:
                    self._stray(key, output)
                    continue
                if trail.take(output):
                    cancels.append(key)
                if trail.end is not None:
                    del station.live[key]
            self._news = True
            self._changed.notify_all()
        if station.handle is not None:
            for key in cancels:
                station.handle.cancel(key)

    def _stray(self, key: str, output: EngineOutput) -> None:
        owner = self._owners.get(key)
        if owner is None:
            self.strays += 1
        else:
            owner.faults.append(f"said {type(output).__name__} after its end")

    def _died(self, station: _Station, how: str) -> None:
        with self._changed:
            station.death = how
            self._lose(station)

    def _lose(self, station: _Station) -> None:
        for trail in station.live.values():
            trail.lost = True
        station.live.clear()
        self._news = True
        self._changed.notify_all()
