"""Everything a living worker owns, put together once: engines, publisher, runner, reporter."""

from __future__ import annotations

import logging
import platform
import threading
import time
import uuid
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import ConfigurationError, NotFoundError, OutOfMemoryError
from ccs_broker.transport import CLAIMS, WorkerProfile
from ccs_workers.consume.health import Health
from ccs_workers.consume.place import place_for
from ccs_workers.consume.report import Reporter
from ccs_workers.consume.sideline import Sideline
from ccs_workers.engines.footprint import map_large_blocks
from ccs_workers.executor.pool import EnginePool
from ccs_workers.executor.residency import Residency
from ccs_workers.executor.runner import Runner
from ccs_workers.models.modelfile import load_model_file
from ccs_workers.publish.patience import OUTAGE
from ccs_workers.publish.publisher import Publisher
from ccs_workers.scheduling.accounts import Accounts
from ccs_workers.scheduling.allocation import allocation_of
from ccs_workers.scheduling.learner import Learner

if TYPE_CHECKING:
    from ccs_broker.ledger import Ledger
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

_DRAIN_POLL_S: Final = 0.05


def node_name(name: str | None) -> str:
    """Celery's node name; without a name one that no other worker has: two containers may share a host name."""
    return f"{name or f'ccs-{uuid.uuid4().hex[:8]}'}@{platform.node() or 'localhost'}"


def serving(settings: WorkerSettings) -> ModelFile:
    """Models of the file that this worker serves.

    Raises:
        ConfigurationError: no file, a faulty one, or one without a model for a modality that was asked for.
    """
    if settings.model_file is None:
        raise ConfigurationError(
            "a worker needs a model file: pass --models FILE or set CCS_MODELS "
            "(make one with: ccs models prepare)"
        )
    models = load_model_file(settings.model_file)
    wanted = settings.modalities or tuple(dict.fromkeys(spec.modality for spec in models.specs))
    for modality in wanted:
        try:
            models.default_for(modality)
        except NotFoundError as error:
            raise ConfigurationError(f"{settings.model_file}: {error.message}") from error
    return models.for_modalities(wanted)


class Runtime:
    """Owns what a worker process needs besides Celery."""

    def __init__(self, settings: WorkerSettings, ledger: Ledger, name: str) -> None:
        # Media pass through on their way to engines: what they took is to go back at once, not to stay in each thread.
        map_large_blocks()
        self.models = serving(settings)
        self._allocation = allocation_of(settings, self.models.modalities)
        self._settings = settings
        self._name = name
        self._draining = False
        publisher = Publisher(ledger)
        place = place_for(settings, self.models)
        self.engines = EnginePool(self.models, publisher, place)
        learner = Learner(ledger)
        accounts = Accounts(learner)
        publisher.on_away, publisher.on_back = accounts.meter.stall, accounts.meter.resume
        self.runner = Runner(ledger, CLAIMS, self.engines, publisher, accounts, worker=name)
        residency = Residency(
            ledger.redis, self.models, self.engines, place.footprints, unload_idle_s=settings.unload_idle_s
        )
        self._sideline = Sideline(ledger, learner, self.models, self.engines, residency)
        self.reporter = Reporter(name, settings, self.models, self.engines, ledger)
        self.reporter.learner = learner
        self._health: Health | None = None

    def load(self) -> None:
        """Load the default model of every modality, one after another, as far as they fit; others when they are needed.

        Raises:
            ConfigurationError: the health endpoint can't listen there, or a model can't be loaded, or the device's
                memory doesn't even hold the first one.
            EngineError: a model can't be loaded.
        """
        self.reporter.start()
        if self._settings.health_port is not None:
            self._health = Health(self.reporter, self._settings.health_host, self._settings.health_port)
        loaded = 0
        for modality in self.models.modalities:
            spec = self.models.default_for(modality)
            logger.info("loading model %s (%s)", spec.alias, modality.value)
            try:
                self.engines.get(spec)
                loaded += 1
            except OutOfMemoryError as error:
                if not loaded:
                    raise ConfigurationError(
                        f"{error.message}: the device's memory doesn't hold the model; see --memory and --device"
                    ) from error
                logger.warning("%s: the model is loaded once jobs wait for it", error.message)

    def open(self) -> None:
        """Tell the transport what to claim, and the fleet that this worker is ready."""
        CLAIMS.profile = WorkerProfile(
            name=self._name,
            models=tuple(spec.alias for spec in self.models.specs),
            slots=self._allocation.slots,
            rules=self._allocation,
            memory=self.engines.memory,
        )
        self.engines.memory.on_room = CLAIMS.grown
        self._sideline.start(preempting=not self._allocation.is_static)
        self.reporter.ready(CLAIMS)

    def drain(self) -> None:
        """Claim nothing more; give running jobs their time to end, then hand them back. Returns at once.

        Called again, it hands back at once: a second signal is faster, never lossier.
        """
        CLAIMS.close()
        self.reporter.wake()
        drain_s = 0.0 if self._draining else self._settings.drain_s
        self._draining = True
        threading.Thread(target=self._hand_back, args=(drain_s,), name="ccs-drain", daemon=True).start()

    def _hand_back(self, drain_s: float) -> None:
        until = time.monotonic() + drain_s
        while CLAIMS.busy() and time.monotonic() < until:
            time.sleep(_DRAIN_POLL_S)
        OUTAGE.closing()
        while CLAIMS.busy():
            # Again and again: a job may only now be on its way to an engine.
            for run in self.engines.runs():
                run.notice("drain")
            time.sleep(_DRAIN_POLL_S)

    def close(self) -> None:
        """Let what runs end or be handed back, sign off, and end the engines.

        Celery stops its steps before it waits for its pool, so the wait has to be here: an engine must outlive the
        jobs that run on it.
        """
        if not self._draining:
            self.drain()
        while CLAIMS.busy():
            time.sleep(_DRAIN_POLL_S)
        self._sideline.stop()
        self.reporter.stop()
        if self._health is not None:
            self._health.stop()
        self.engines.close()
