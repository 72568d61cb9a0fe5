"""What a worker does beside its jobs: it tells what they took, and lets some make way for more urgent ones."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from ccs_broker.transport import CLAIMS
from ccs_broker.transport.keeper import Loop
from ccs_workers.executor.residency import LOOK_EVERY_S as RESIDENCY_EVERY_S
from ccs_workers.executor.residency import lanes_of
from ccs_workers.scheduling.learner import LEARN_EVERY_S
from ccs_workers.scheduling.preemption import LOOK_EVERY_S, Preemptor, Running

if TYPE_CHECKING:
    from ccs_broker.ledger import Ledger
    from ccs_workers.executor.pool import EnginePool
    from ccs_workers.executor.residency import Residency
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.publish.run import JobRun
    from ccs_workers.scheduling.learner import Learner

logger = logging.getLogger(__name__)

#: Seconds between two looks at what others use of the device.
MEASURE_EVERY_S: Final = 5.0


class Sideline:
    """The threads for that, from the worker's readiness to its end."""

    def __init__(
        self,
        ledger: Ledger,
        learner: Learner,
        models: ModelFile,
        engines: EnginePool,
        residency: Residency,
    ) -> None:
        self._learner = learner
        self._residency = residency
        self._engines = engines
        self._preemptor = Preemptor(ledger.redis, CLAIMS, list(lanes_of(models)), self._running)
        self._loops: list[Loop] = []

    def start(self, *, preempting: bool) -> None:
        """Begin; ``preempting``: jobs may make way for others."""
        self._loops.append(Loop("ccs-learn", LEARN_EVERY_S, self._learner.push))
        self._loops.append(Loop("ccs-residency", RESIDENCY_EVERY_S, self._residency.look))
        self._loops.append(Loop("ccs-memory", MEASURE_EVERY_S, self._engines.measure))
        if preempting:
            self._loops.append(Loop("ccs-preempt", LOOK_EVERY_S, self._preemptor.look))

    def stop(self) -> None:
        """End, and tell what is still untold."""
        for loop in self._loops:
            loop.stop()
        if self._loops:
            self._learner.close()

    def _running(self) -> list[Running]:
        return [_as_running(run) for run in self._engines.runs() if run.state == "ok"]


def _as_running(run: JobRun) -> Running:
    claim = run.claim
    return Running(
        key=(claim.id, claim.attempt),
        queue=claim.queue,
        rank=claim.rank,
        score=claim.score,
        relegated=claim.relegated,
        ran_s=time.monotonic() - run.began_at,
        restart_s=claim.first_us / 1e6,
        preempted=claim.preempted,
        make_way=partial(_make_way, run),
    )


def _make_way(run: JobRun) -> None:
    logger.info("job %s makes way for a more urgent one", run.job_id)
    run.notice("preempted")
