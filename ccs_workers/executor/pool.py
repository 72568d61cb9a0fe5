"""The engines of one worker: loaded one at a time, within the device's memory, and replaced when they die."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from ccs_broker.errors import EngineLostError, NoSuitableWorkerError, NotFoundError, OutOfMemoryError
from ccs_workers.engines.protocol import SIMULATED_DEVICE
from ccs_workers.executor.borrowing import Borrowing
from ccs_workers.executor.gate import Gate
from ccs_workers.executor.handle import EngineHandle
from ccs_workers.publish.run import JobRun, Lost

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ccs_broker.contract import Job
    from ccs_workers.admission.budget import DeviceBudget
    from ccs_workers.admission.footprints import Footprints
    from ccs_workers.admission.ledger import MemoryLedger
    from ccs_workers.engines.protocol import MemoryUse, Sized
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.publish.publisher import Publisher

logger = logging.getLogger(__name__)

#: How often a model is loaded whose process dies while loading.
LOAD_TRIES: Final = 3
#: Seconds between two looks at jobs that are to be handed back, and for which they may take.
_LOOK_S: Final = 0.25
_HAND_BACK_S: Final = 10.0

EngineState = Literal["declared", "loading", "ready", "leaving", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where engines run, and what they may hold there."""

    memory: MemoryLedger
    footprints: Footprints
    #: What torch is told where a model leaves it open.
    device: str = "auto"
    #: The value of CUDA_VISIBLE_DEVICES for engines; empty: what the worker has.
    visible: str = ""
    #: What the device has for this worker, asked again and again; None: it never changes.
    budget: DeviceBudget | None = None
    #: Held while a model loads: one at a time on a device, over all its workers.
    start_up: Callable[[], AbstractContextManager[None]] = nullcontext


class EnginePool:
    """Alias to engine. One lock serializes loading: overlapping loads corrupt each other and double the peak."""

    def __init__(self, models: ModelFile, publisher: Publisher, place: Place) -> None:
        self._models = models
        self._publisher = publisher
        self._place = place
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._handles: dict[str, EngineHandle] = {}
        self._states: dict[str, EngineState] = {spec.serving.alias: "declared" for spec in models.specs}
        #: Attempts by engine process: an old one's death may be noticed when its successor runs already.
        self._running: dict[EngineHandle, dict[str, JobRun]] = {}
        #: When a model became ready, and when its last job ended.
        self._since: dict[str, float] = {}
        self._used: dict[str, float] = {}
        gates = {spec.serving.alias: Gate() for spec in models.specs}
        self._gates = {spec.alias: gates[spec.serving.alias] for spec in models.specs}

    @property
    def memory(self) -> MemoryLedger:
        """Who holds the device's memory."""
        return self._place.memory

    @property
    def states(self) -> dict[str, EngineState]:
        """State of every model of the file, by alias."""
        with self._lock:
            return {spec.alias: self._states[spec.serving.alias] for spec in self._models.specs}

    def handles(self) -> list[EngineHandle]:
        """Engines that are loaded now."""
        with self._lock:
            return list(self._handles.values())

    def times(self, alias: str) -> tuple[float, float]:
        """For how many seconds a loaded engine has been there, and for how many nobody has used it."""
        now = time.monotonic()
        with self._lock:
            since = self._since.get(alias, now)
            return now - since, now - max(since, self._used.get(alias, since))

    def spec_for(self, job: Job) -> ModelSpec:
        """The model that serves a job.

        Raises:
            NoSuitableWorkerError: this worker has none.
        """
        try:
            spec = self._models.get(job.model) if job.model else self._models.default_for(job.modality)
        except NotFoundError as error:
            raise NoSuitableWorkerError(error.message) from error
        if spec.modality != job.modality:
            raise NoSuitableWorkerError(
                f"the model {spec.alias!r} serves {spec.modality.value} jobs, not {job.modality.value}"
            )
        return spec

    def gate(self, alias: str) -> Gate:
        """The gate that jobs of a model go through."""
        return self._gates[alias]

    def runs(self) -> list[JobRun]:
        """Attempts that run now, on any engine."""
        with self._lock:
            return [run for runs in self._running.values() for run in runs.values()]

    def runs_of(self, alias: str) -> list[JobRun]:
        """Attempts that run now on an engine."""
        with self._lock:
            return [
                run
                for engine, runs in self._running.items()
                if engine.spec.alias == alias
                for run in runs.values()
            ]

    def get(self, spec: ModelSpec) -> EngineHandle:
        """The loaded engine of a model; loads it first where needed.

        Raises:
            ConfigurationError, EngineError: it can't be loaded.
            OutOfMemoryError: there is no room for it now.
        """
        spec = spec.serving
        handle = self._ready(spec.alias)
        if handle is not None:
            return handle
        with self._loading:
            handle = self._ready(spec.alias)
            return handle if handle is not None else self._load_again(spec)

    def evict(self, alias: str, patience_s: float) -> bool:
        """Unload a model once its running jobs have ended, or were handed back after ``patience_s``.

        False if they hold on to it: then it goes on.
        """
        memory = self._place.memory
        memory.suspend(alias)
        self._set(alias, "leaving")
        if not self._wait_unused(alias, patience_s):
            with self._lock:
                handle = self._handles.get(alias)
            self._set(alias, "ready")
            if handle is not None and handle.info is not None:
                memory.admit(alias, self._place.footprints.measured(handle.info), handle.info.need)
            return False
        with self._loading, self._lock:
            handle = self._handles.pop(alias, None)
        if handle is not None:
            handle.close()
        memory.drop(alias)
        self._set(alias, "declared")
        logger.info("model %s has made room", alias)
        return True

    def _wait_unused(self, alias: str, patience_s: float) -> bool:
        """Wait for the end of an engine's jobs; those that last are to be continued later."""
        until = time.monotonic() + patience_s
        unused = self._place.memory.when_unused(alias)
        if unused.wait(patience_s):
            return True
        while time.monotonic() < until + _HAND_BACK_S:
            for run in self.runs_of(alias):
                run.notice("switch")
            if unused.wait(_LOOK_S):
                return True
        return False

    def _load_again(self, spec: ModelSpec) -> EngineHandle:
        """Load, a few times if the process is killed meanwhile: that is not the fault of the job that waits for it."""
        for _ in range(LOAD_TRIES - 1):
            try:
                return self._load(spec)
            except EngineLostError as error:
                logger.warning("%s; trying again", error.message)
        return self._load(spec)

    def _ready(self, alias: str) -> EngineHandle | None:
        with self._lock:
            handle = self._handles.get(alias)
        return handle if handle is not None and handle.alive else None

    def _load(self, spec: ModelSpec) -> EngineHandle:
        alias, place = spec.alias, self._place
        wanted = replace(spec, device=place.device) if spec.device == "auto" else spec
        handle = EngineHandle(
            wanted,
            self._publisher.outputs,
            lambda how: self._died(handle, how),
            lambda key, sized: self._sized(handle, key, sized),
            lambda use: self._measured(handle, use),
            visible=place.visible,
        )
        self._set(alias, "loading")
        try:
            with place.start_up():
                self._take(spec)
                try:
                    info = handle.start()
                except BaseException:
                    place.memory.drop(alias)
                    raise
        except BaseException:
            self._set(alias, "declared")
            raise
        with self._lock:
            self._handles[alias] = handle
            self._states[alias] = "ready"
            self._since[alias] = time.monotonic()
        place.memory.admit(alias, place.footprints.measured(info), info.need)
        logger.info("model %s is ready on %s after %.1f s", alias, info.device, info.load_s)
        return handle

    def measure(self) -> None:
        """Ask the device what others leave of its memory."""
        if self._place.budget is not None:
            pids = [handle.pid for handle in self.handles() if handle.pid is not None]
            self._place.memory.rebudget(self._place.budget.read(pids))

    def _take(self, spec: ModelSpec) -> None:
        self.measure()
        footprint = self._place.footprints.expected(spec)
        if not self._place.memory.take(spec.alias, footprint):
            raise OutOfMemoryError(
                f"the model {spec.alias!r} needs {footprint.fixed_bytes} bytes, which aren't free now"
            )

    def _set(self, alias: str, state: EngineState) -> None:
        with self._lock:
            self._states[alias] = state

    def attach(self, engine: EngineHandle, run: JobRun) -> None:
        """An attempt runs on this engine: it ends with it, should the engine die."""
        with self._lock:
            self._running.setdefault(engine, {})[run.key] = run

    def detach(self, engine: EngineHandle, run: JobRun) -> None:
        """The attempt is over."""
        with self._lock:
            self._used[engine.spec.alias] = time.monotonic()
            runs = self._running.get(engine, {})
            runs.pop(run.key, None)
            if not runs:
                self._running.pop(engine, None)

    def _sized(self, engine: EngineHandle, key: str, sized: Sized) -> None:
        with self._lock:
            run = self._running.get(engine, {}).get(key)
        if run is not None:
            borrower = Borrowing(run, engine, key)
            self._place.memory.resize((run.job_id, run.attempt), sized.need_bytes, borrower, sized.step_bytes)

    def _measured(self, engine: EngineHandle, use: MemoryUse) -> None:
        with self._lock:
            is_current = self._handles.get(engine.spec.alias) is engine
        # A simulated engine only says what it holds.
        if is_current and engine.info is not None and engine.info.device != SIMULATED_DEVICE:
            self._place.memory.observe(engine.spec.alias, use.peak_bytes)

    def _died(self, engine: EngineHandle, how: str) -> None:
        alias = engine.spec.alias
        with self._lock:
            if self._handles.get(alias) is engine:
                del self._handles[alias]
                self._states[alias] = "lost"
            runs = list(self._running.get(engine, {}).values())
        for run in runs:
            run.finish(Lost(how))

    def close(self) -> None:
        """End all engines."""
        for handle in self.handles():
            handle.close()
