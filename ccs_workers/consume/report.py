"""Tells the fleet that this worker lives: what it serves, how busy it is, how far its engines are."""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from ccs_workers import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccs_broker.ledger import Ledger
    from ccs_broker.transport import ClaimTable
    from ccs_workers.executor.pool import EnginePool
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.settings import WorkerSettings

logger = logging.getLogger(__name__)


class Reporter:
    """A thread that reports now and again, and at once when asked."""

    def __init__(
        self, name: str, settings: WorkerSettings, models: ModelFile, engines: EnginePool, ledger: Ledger
    ) -> None:
        self._name = name
        self._settings = settings
        self._models = models
        self._engines = engines
        self._ledger = ledger
        self._claims: ClaimTable | None = None
        self._ready = False
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="ccs-report", daemon=True)

    def start(self) -> None:
        """Begin to report, as a worker that is still loading."""
        self._thread.start()

    def ready(self, claims: ClaimTable) -> None:
        """The worker consumes from now on."""
        self._claims = claims
        self._ready = True
        self._wake.set()

    def stop(self) -> None:
        """Sign off."""
        self._stop = True
        self._wake.set()
        self._thread.join(timeout=2.0)
        try:
            self._ledger.run(self._ledger.calls.retire(self._name))
        except (RedisError, OSError):
            logger.debug("could not sign off; the report's TTL does it")

    def _run(self) -> None:
        while not self._stop:
            states = self._engines.states
            served = [(spec.modality.value, spec.alias) for spec in self._models.specs if self._ready]
            call = self._ledger.calls.report(
                self._name, json.dumps(self._report(states)), self._settings.report_ttl_s, served
            )
            try:
                self._ledger.run(call)
            except (RedisError, OSError) as error:
                logger.debug("report not written: %s", type(error).__name__)
            self._wake.wait(self._settings.report_every_s)
            self._wake.clear()

    def _report(self, states: Mapping[str, str]) -> dict[str, object]:
        busy = self._claims.busy() if self._claims else 0
        loaded = {handle.spec.alias: handle for handle in self._engines.handles()}
        return {
            "v": 1,
            "name": self._name,
            "state": "ready" if self._ready else "loading",
            "host": platform.node(),
            "pid": os.getpid(),
            "version": __version__,
            "modalities": sorted({spec.modality.value for spec in self._models.specs}),
            "slots": self._settings.slots,
            "busy": busy,
            "allocation": self._settings.allocation,
            "models": [
                {
                    "alias": spec.alias,
                    "modality": spec.modality.value,
                    "engine": spec.engine,
                    "state": states.get(spec.alias, "declared"),
                    "pid": loaded[spec.alias].pid if spec.alias in loaded else None,
                    "device": info.device
                    if spec.alias in loaded and (info := loaded[spec.alias].info)
                    else None,
                }
                for spec in self._models.specs
            ],
        }
