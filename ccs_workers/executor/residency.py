"""Keeps the models loaded for which jobs wait, within the device's memory: looks, chooses, unloads, loads."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from ccs_broker import topology
from ccs_broker.errors import CcsError
from ccs_workers.admission.residency import Demand, ResidencyRules, Resident, Switch, next_switch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis import Redis

    from ccs_workers.admission.footprints import Footprints
    from ccs_workers.executor.pool import EnginePool
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.models.spec import ModelSpec

__all__ = ["LOOK_EVERY_S", "Residency"]

logger = logging.getLogger(__name__)

#: Seconds between two looks at what waits.
LOOK_EVERY_S: Final = 0.25
#: Seconds for which the jobs of a model that makes room may go on before they are handed back.
DRAIN_S: Final = 10.0
#: Seconds for which a model that couldn't be loaded isn't tried again.
_AGAIN_S: Final = 30.0
_MINUTE_S: Final = 60.0
#: Until a model has been loaded once, it is expected to take so long.
_LOAD_S: Final = 5.0


class Residency:
    """One per worker; :meth:`look` is called now and again by one thread."""

    def __init__(
        self,
        redis: Redis,
        models: ModelFile,
        engines: EnginePool,
        footprints: Footprints,
        *,
        rules: ResidencyRules | None = None,
        unload_idle_s: float | None = None,
    ) -> None:
        """Serve the models of a file; ``unload_idle_s``: those that aren't a default go when unused for so long."""
        self._redis = redis
        self._engines = engines
        self._footprints = footprints
        self._rules = rules or ResidencyRules()
        self._unload_idle_s = unload_idle_s
        self._hosts: dict[str, ModelSpec] = {spec.serving.alias: spec.serving for spec in models.specs}
        self._defaults = {models.default_for(modality).serving.alias for modality in models.modalities}
        self._lanes = lanes_of(models)
        self._load_s: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        #: When models made room.
        self._switches: deque[float] = deque()
        self._stop = threading.Event()

    def look(self) -> None:
        """Load, unload or leave everything as it is. Errors of the server pass through."""
        states = {alias: self._engines.states.get(alias, "declared") for alias in self._hosts}
        absent = [alias for alias, state in states.items() if state == "declared"]
        if absent:
            heads = self._heads()
            switch = self._choose(absent, heads)
            if switch is not None:
                self._make(switch)
                return
        self._unload_idle()

    def _choose(self, absent: Sequence[str], heads: Mapping[str, tuple[float, float]]) -> Switch | None:
        now = time.monotonic()
        while self._switches and now - self._switches[0] > _MINUTE_S:
            self._switches.popleft()
        demands = [
            Demand(alias=alias, score=score, waited_s=waited_s, load_s=self._load_s.get(alias, _LOAD_S))
            for alias in absent
            if alias in heads and now - self._failed.get(alias, -_AGAIN_S) >= _AGAIN_S
            for score, waited_s in [heads[alias]]
        ]
        if not demands:
            return None
        return next_switch(
            demands, self._residents(heads), self._fits, recent=len(self._switches), rules=self._rules
        )

    def _residents(self, heads: Mapping[str, tuple[float, float]]) -> list[Resident]:
        found = []
        for handle in self._engines.handles():
            alias = handle.spec.alias
            here_s, unused_s = self._engines.times(alias)
            busy = bool(self._engines.runs_of(alias))
            found.append(
                Resident(
                    alias=alias,
                    load_s=self._load_s.get(alias, handle.info.load_s if handle.info else 0.0),
                    here_s=here_s,
                    unused_s=0.0 if busy else unused_s,
                    busy=busy,
                    score=heads[alias][0] if alias in heads else None,
                )
            )
        return found

    def _fits(self, alias: str, without: Sequence[str]) -> bool:
        return self._engines.memory.could_take(self._footprints.expected(self._hosts[alias]), without)

    def _make(self, switch: Switch) -> None:
        for alias in switch.evict:
            logger.info("model %s makes room for %s", alias, switch.alias)
            if not self._engines.evict(alias, DRAIN_S):
                return
            self._switches.append(time.monotonic())
        began = time.monotonic()
        try:
            self._engines.get(self._hosts[switch.alias])
        except CcsError as error:
            self._failed[switch.alias] = time.monotonic()
            logger.error("the model %s can't be loaded now: %s", switch.alias, error.message)
        else:
            self._load_s[switch.alias] = time.monotonic() - began

    def _unload_idle(self) -> None:
        if self._unload_idle_s is None:
            return
        for handle in self._engines.handles():
            alias = handle.spec.alias
            if alias in self._defaults or self._engines.runs_of(alias):
                continue
            if self._engines.times(alias)[1] >= self._unload_idle_s:
                logger.info("model %s has been idle for %.0f s", alias, self._unload_idle_s)
                self._engines.evict(alias, 0.0)
                return

    def _heads(self) -> dict[str, tuple[float, float]]:
        """By engine: the best score that waits for it, and for how many seconds the best jobs have waited."""
        with self._redis.pipeline(transaction=False) as pipe:
            for queue, model in self._lanes:
                pipe.zrange(topology.lane_of(queue, model), 0, 0, withscores=True)
            replies = cast("list[list[tuple[bytes, float]]]", pipe.execute())
        first = {lane: rows[0] for lane, rows in zip(self._lanes, replies, strict=True) if rows}
        if not first:
            return {}
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id, _ in first.values():
                pipe.hget(topology.JOB + job_id.decode(), "sub")
            (seconds, micros), *submitted = pipe.execute()
        now_ms = seconds * 1000 + micros / 1000
        heads: dict[str, tuple[float, float]] = {}
        for (lane, (_, score)), sub in zip(first.items(), submitted, strict=True):
            alias, waited_s = self._lanes[lane], max(0.0, now_ms - float(sub or now_ms)) / 1000
            best, longest = heads.get(alias, (score, waited_s))
            heads[alias] = (min(best, score), max(longest, waited_s))
        return heads


def lanes_of(models: ModelFile) -> dict[tuple[str, str], str]:
    """By queue and model as jobs name it ("" for none): the engine that serves them."""
    lanes = {(topology.queue_of(spec.modality), spec.alias): spec.serving.alias for spec in models.specs}
    for modality in models.modalities:
        lanes[topology.queue_of(modality), ""] = models.default_for(modality).serving.alias
    return lanes
