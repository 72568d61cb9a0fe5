"""Tells the fleet that this worker is able to consume: what it serves, how busy it is, how far its engines are."""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from ccs_broker import topology
from ccs_broker.ledger.faults import fault_word
from ccs_workers import __version__
from ccs_workers.consume.memory_report import memory_report
from ccs_workers.consume.pulse import CONSUMING, Pulse, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccs_broker.ledger import Ledger
    from ccs_broker.transport import ClaimTable
    from ccs_workers.executor.handle import EngineHandle
    from ccs_workers.executor.pool import EnginePool
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.scheduling.learner import Learner
    from ccs_workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

#: Seconds beyond the report's own interval after which a server that hasn't answered counts as away.
_SILENCE_S: Final = 6.0


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
        #: What tells how well service times are predicted.
        self.learner: Learner | None = None
        self._ready = False
        self._pulse = Pulse(CONSUMING, settings.stall_s)
        self._away = ""
        self._answered = time.monotonic()
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="ccs-report", daemon=True)

    def start(self) -> None:
        """Begin to report, as a worker that is still loading."""
        CONSUMING.on_change = self.wake
        self._thread.start()

    def ready(self, claims: ClaimTable) -> None:
        """The worker consumes from now on."""
        self._claims = claims
        self._ready = True
        self._wake.set()

    def wake(self) -> None:
        """Report at once: something has changed."""
        self._wake.set()

    @property
    def server_trouble(self) -> str:
        """Empty while the server takes this worker's reports, else what is wrong."""
        silent_s = time.monotonic() - self._answered
        if self._away:
            return f"the server takes no reports ({self._away})"
        if silent_s > self._settings.report_every_s + _SILENCE_S:
            return f"the server has not answered for {silent_s:.0f} s"
        return ""

    def verdict(self) -> Verdict:
        """What this worker is to the fleet now. From any thread."""
        if not self._ready or self._claims is None or not CONSUMING.has_begun:
            return Verdict(State.LOADING)
        if self._claims.closed:
            return Verdict(State.DRAINING)
        trouble = self._pulse.trouble
        return Verdict(State.STALLED, trouble) if trouble else Verdict(State.READY)

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
        said = State.LOADING
        while not self._stop:
            said = self._look(said)
            states = self._engines.states
            served = [(spec.modality.value, spec.alias) for spec in self._models.specs if self._ready]
            call = self._ledger.calls.report(
                self._name, json.dumps(self._report(states)), self._settings.report_ttl_s, served
            )
            try:
                self._ledger.run(call)
                self._away, self._answered = "", time.monotonic()
            except (RedisError, OSError) as error:
                self._away = fault_word(error)
                logger.debug("report not written: %s", self._away)
            self._wake.wait(self._settings.report_every_s)
            self._wake.clear()

    def _look(self, said: State) -> State:
        """Take a sample of the queues; log when that turns the worker stalled, or well again."""
        claims = self._claims
        if claims is not None:
            try:
                waiting = self._waiting_beside_free_slots(claims)
            except (RedisError, OSError):
                waiting = 0
            self._pulse.look(waiting=waiting, silent_s=claims.silent_s)
        verdict = self.verdict()
        # The consumer itself logs what its connection does.
        if verdict.state is State.STALLED and said is not State.STALLED and not CONSUMING.trouble:
            logger.error("this worker is stalled: %s", verdict.reason)
        return verdict.state

    def _waiting_beside_free_slots(self, claims: ClaimTable) -> int:
        queues = {topology.queue_of(spec.modality) for spec in self._models.specs}
        free = [queue for queue in queues if claims.has_slot() and claims.has_room(queue)]
        lengths = [self._ledger.redis.llen(topology.tickets_of(queue)) for queue in free]
        return sum(lengths)

    def _report(self, states: Mapping[str, str]) -> dict[str, object]:
        busy = self._claims.busy() if self._claims else 0
        verdict = self.verdict()
        loaded = {handle.spec.alias: handle for handle in self._engines.handles()}
        return {
            "v": 1,
            "name": self._name,
            "state": verdict.state.value,
            **({"reason": verdict.reason} if verdict.reason else {}),
            "host": platform.node(),
            "pid": os.getpid(),
            "version": __version__,
            "modalities": sorted({spec.modality.value for spec in self._models.specs}),
            "slots": self._settings.slots,
            "busy": busy,
            "allocation": self._settings.allocation,
            "slot_parts": dict(self._settings.slot_parts),
            "floors": dict(self._settings.floors),
            "estimates": self._estimates(),
            "memory": memory_report(self._engines),
            "models": [
                _model(spec, states.get(spec.alias, "declared"), loaded.get(spec.serving.alias))
                for spec in self._models.specs
            ],
        }

    def _estimates(self) -> list[dict[str, object]]:
        """How far the times of jobs were predicted wrongly: medians of the last ones, by queue and model named."""
        errors = self.learner.errors() if self.learner is not None else {}
        return [
            {
                "modality": topology.modality_of(queue).value,
                "model": model or None,
                "jobs": found.jobs,
                "first_error": None if found.first is None else round(found.first, 4),
                "error": round(found.cost, 4),
            }
            for (queue, model), found in sorted(errors.items())
        ]


def _model(spec: ModelSpec, state: str, handle: EngineHandle | None) -> dict[str, object]:
    """One model as the report tells of it; what only a loaded one knows is None before."""
    info = handle.info if handle is not None else None
    return {
        "alias": spec.alias,
        "modality": spec.modality.value,
        "engine": spec.engine,
        "default": spec.default,
        "state": state,
        "pid": handle.pid if handle is not None else None,
        "device": info.device if info is not None else None,
        "takes_prompt": info.takes_prompt if info is not None else None,
    }
