"""Engines that die at the wrong moment: while they load, or noticed only when their successor runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from ccs_broker.ledger import Claim, Ledger
from ccs_workers.admission.footprints import Footprints
from ccs_workers.admission.ledger import MemoryLedger
from ccs_workers.executor.pool import EnginePool, Place
from ccs_workers.executor.residency import lanes_of
from ccs_workers.models.modelfile import load_model_file
from ccs_workers.publish.publisher import Publisher
from ccs_workers.publish.run import JobRun
from tests.helpers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELS = '[models.sim]\nmodality = "text"\nengine = "simulated"\ndefault = true\nload_seconds = {load_s}\n'


@pytest.fixture
def pool(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[EnginePool]:
    path = tmp_path / "models.toml"
    path.write_text(MODELS.format(load_s=request.param))
    with redis.Redis.from_url(redis_url) as client:
        models = load_model_file(path)
        place = Place(memory=MemoryLedger(None, lanes_of(models)), footprints=Footprints())
        made = EnginePool(models, Publisher(Ledger(client)), place)
        yield made
        made.close()


def hosts() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "ccs_workers.engines.host" in child.cmdline()]


@pytest.mark.parametrize("pool", [0], indirect=True)
def test_an_engine_whose_death_is_noticed_late_takes_nothing_of_its_successor(pool: EnginePool) -> None:
    (spec,) = pool._models.specs
    first = pool.get(spec)
    first.kill()
    second = pool.get(spec)
    assert second is not first
    claim = Claim(
        id="a", attempt=1, queue="ccs.text", message=b"", payload=b"", seq=1, submitted_ms=0, expire_ms=0
    )
    run = JobRun(claim)
    pool.attach(second, run)
    pool._died(first, "signal 9")
    assert run.wait(0) is None
    assert pool.get(spec) is second
    assert pool.states == {"sim": "ready"}


@pytest.mark.chaos
@pytest.mark.parametrize("pool", [2], indirect=True)
def test_an_engine_that_is_killed_while_it_loads_is_loaded_again(pool: EnginePool) -> None:
    (spec,) = pool._models.specs
    before = hosts()
    found = []
    waiting = threading.Thread(target=lambda: found.append(pool.get(spec)))
    waiting.start()
    wait_until(lambda: [host for host in hosts() if host not in before], 10)[0].kill()
    waiting.join(30)
    assert found[0].alive
