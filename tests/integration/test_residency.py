"""Models come and go under one budget, with real engine processes: who waits gets its model, who runs keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from ccs_broker.contract import QosClass
from ccs_broker.ledger import Claim, ClaimWish, Entry, Ledger
from ccs_broker.priority import Work, urgency
from ccs_workers.admission.footprints import Footprints
from ccs_workers.admission.ledger import MemoryLedger
from ccs_workers.admission.residency import ResidencyRules
from ccs_workers.executor.pool import EnginePool, Place
from ccs_workers.executor.residency import Residency, lanes_of
from ccs_workers.models.modelfile import load_model_file
from ccs_workers.publish.publisher import Publisher
from ccs_workers.publish.run import JobRun
from tests.helpers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = """
[models.{alias}]
modality = "text"
engine = "simulated"
weights_bytes = 400
memory_bytes = 1000
bytes_per_job = 10
{default}
"""
RULES = ResidencyRules(
    stay_s=0.3, stay_per_load=0, patience_s=0.5, patience_per_load=0, switches_per_minute=100
)


class Host:
    """Three models, of which two fit, and what looks after them."""

    def __init__(self, url: str, folder: Path) -> None:
        path = folder / "models.toml"
        path.write_text(
            "".join(MODEL.format(alias=alias, default="default = true" * (alias == "a")) for alias in "abc")
        )
        self.redis = redis.Redis.from_url(url)
        self.ledger = Ledger(self.redis)
        self.models = load_model_file(path)
        footprints = Footprints()
        self.memory = MemoryLedger(1000, lanes_of(self.models))
        self.engines = EnginePool(
            self.models, Publisher(self.ledger), Place(memory=self.memory, footprints=footprints)
        )
        self.residency = Residency(
            self.redis, self.models, self.engines, footprints, rules=RULES, unload_idle_s=1.0
        )

    def publish(self, job_id: str, model: str, qos: str = "standard") -> None:
        entry = Entry(
            id=job_id, queue="ccs.text", model=model, payload=b"{}", urgency=urgency(QosClass(qos), None),
            work=Work(first_us=1000, cost_us=1000),
        )  # fmt: skip
        assert self.ledger.publish(entry).status.value == "ok"

    def claim(self) -> Claim:
        wish = ClaimWish(
            popped="ccs.text",
            queues=("ccs.text",),
            worker="w",
            models=("a", "b", "c"),
            room=self.memory.room("ccs.text", 1.0),
        )
        claim = self.ledger.claim(wish)
        assert isinstance(claim, Claim), claim
        model = (self.redis.hget(f"ccs:job:{claim.id}", "model") or b"").decode()
        self.memory.reserve((claim.id, claim.attempt), claim.queue, model, (0, 1, 0, 0))
        return claim

    def resident(self) -> set[str]:
        return {alias for alias, state in self.engines.states.items() if state == "ready"}

    def until(self, wanted: set[str], timeout_s: float = 20.0) -> None:
        def looked() -> bool:
            self.residency.look()
            return self.resident() == wanted

        wait_until(looked, timeout_s)

    def load(self, *aliases: str) -> None:
        for alias in aliases:
            self.engines.get(self.models.get(alias))


@pytest.fixture
def host(redis_url: str, tmp_path: Path) -> Iterator[Host]:
    found = Host(redis_url, tmp_path)
    yield found
    found.engines.close()
    found.redis.close()


def test_a_wanted_model_comes_where_there_is_room_and_then_takes_jobs(host: Host) -> None:
    host.load("a")
    host.publish("job", "b")
    assert host.memory.room("ccs.text", 1.0).need["ccs.text", "b"] is None
    host.until({"a", "b"})
    assert host.claim().id == "job"


def test_the_one_nobody_uses_makes_room_and_its_process_ends(host: Host) -> None:
    host.load("a", "b")
    pids = {handle.spec.alias: handle.pid for handle in host.engines.handles()}
    host.publish("for-a", "", "realtime")
    host.publish("job", "c")
    host.until({"a", "c"})
    assert not psutil.pid_exists(pids["b"])
    assert psutil.pid_exists(pids["a"])
    assert host.memory.holdings().free_bytes == 200


def test_a_model_in_use_is_not_evicted_and_its_jobs_are_handed_back_in_the_end(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccs_workers.executor.residency.DRAIN_S", 0.2)
    host.load("a", "b")
    told = []
    for model in ("", "b"):
        host.publish(f"runs-{model}", model, "realtime")
        claim = host.claim()
        run = JobRun(claim)
        engine = next(handle for handle in host.engines.handles() if handle.spec.alias == (model or "a"))
        host.engines.attach(engine, run)

        def leave(run=run, engine=engine) -> None:
            told.append((engine.spec.alias, engine.alive, run.state))
            host.engines.detach(engine, run)
            host.memory.release((run.job_id, run.attempt))

        run.on_stop(leave)
    host.publish("job", "c")
    wait_until(lambda: host.residency.look() or "c" in host.resident(), 20)
    # One of both was asked to go on elsewhere, and its process lived until it had gone.
    ((alias, alive, state),) = told
    assert (alive, state) == (True, "switch")
    assert host.resident() == {"a", "b", "c"} - {alias}


def test_an_idle_model_goes_though_nobody_wants_its_place_but_a_default_one_stays(host: Host) -> None:
    host.load("a", "b")
    host.until({"a"})
    assert host.memory.holdings().free_bytes == 600


def test_three_models_take_turns(host: Host) -> None:
    host.load("a", "b")
    served = []
    for number in range(6):
        model = "abc"[number % 3]
        host.publish(f"job{number}", "" if model == "a" else model)
        wait_until(lambda model=model: host.residency.look() or model in host.resident(), 20)
        claim = host.claim()
        served.append(claim.id)
        host.memory.release((claim.id, claim.attempt))
    assert served == [f"job{number}" for number in range(6)]
