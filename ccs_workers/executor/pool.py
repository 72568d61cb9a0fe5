"""The engines of one worker: loaded one at a time, found by alias, replaced when they die."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from ccs_broker.errors import EngineLostError, NoSuitableWorkerError, NotFoundError
from ccs_workers.executor.gate import Gate
from ccs_workers.executor.handle import EngineHandle
from ccs_workers.publish.run import JobRun, Lost

if TYPE_CHECKING:
    from ccs_broker.contract import Job
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.publish.publisher import Publisher

logger = logging.getLogger(__name__)

#: How often a model is loaded whose process dies while loading.
LOAD_TRIES: Final = 3

EngineState = Literal["declared", "loading", "ready", "lost"]


class EnginePool:
    """Alias to engine. One lock serializes loading: overlapping loads corrupt each other and double the peak."""

    def __init__(self, models: ModelFile, publisher: Publisher, device: str = "auto") -> None:
        self._models = models
        self._publisher = publisher
        self._device = device
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._handles: dict[str, EngineHandle] = {}
        self._states: dict[str, EngineState] = {spec.serving.alias: "declared" for spec in models.specs}
        #: Attempts by engine process: an old one's death may be noticed when its successor runs already.
        self._running: dict[EngineHandle, dict[str, JobRun]] = {}
        gates = {spec.serving.alias: Gate() for spec in models.specs}
        self._gates = {spec.alias: gates[spec.serving.alias] for spec in models.specs}

    @property
    def states(self) -> dict[str, EngineState]:
        """State of every model of the file, by alias."""
        with self._lock:
            return {spec.alias: self._states[spec.serving.alias] for spec in self._models.specs}

    def handles(self) -> list[EngineHandle]:
        """Engines that are loaded now."""
        with self._lock:
            return list(self._handles.values())

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

    def get(self, spec: ModelSpec) -> EngineHandle:
        """The loaded engine of a model; loads it first where needed.

        Raises:
            ConfigurationError, EngineError: it can't be loaded.
        """
        spec = spec.serving
        handle = self._ready(spec.alias)
        if handle is not None:
            return handle
        with self._loading:
            handle = self._ready(spec.alias)
            return handle if handle is not None else self._load_again(spec)

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
        alias = spec.alias
        wanted = replace(spec, device=self._device) if spec.device == "auto" else spec
        handle = EngineHandle(wanted, self._publisher.outputs, lambda how: self._died(handle, how))
        self._set(alias, "loading")
        try:
            info = handle.start()
        except BaseException:
            self._set(alias, "declared")
            raise
        with self._lock:
            self._handles[alias] = handle
            self._states[alias] = "ready"
        logger.info("model %s is ready on %s after %.1f s", alias, info.device, info.load_s)
        return handle

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
            runs = self._running.get(engine, {})
            runs.pop(run.key, None)
            if not runs:
                self._running.pop(engine, None)

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
