"""A job that killed its engines until it was quarantined runs again once the fault is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccs_broker import Client
from tests.workers import simulated_models, worker

if TYPE_CHECKING:
    from pathlib import Path

MODELS = """
[models.sim]
modality = "text"
engine = "simulated"
crash_on = "POISON"
"""


@pytest.mark.chaos
@pytest.mark.usefixtures("no_key_leaks")
def test_a_poison_job_is_explained_and_replayed_on_a_repaired_worker(redis_url: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "models.toml").write_text(MODELS)
    with Client(redis_url) as client:
        with worker(redis_url, broken / "models.toml"):
            bad = client.submit("text", prompt="POISON", max_new_tokens=4)
            assert bad.result(timeout=60).state == "quarantined"
        found = client.dead_job(bad.id)
        assert (found.job.code, found.crashes_alone) == ("ENGINE_LOST", 3)
        assert "signal 9" in found.job.message
        with worker(redis_url, simulated_models(tmp_path)):
            assert client.replay(bad.id).result(timeout=20).ok
        assert bad.result().state == "quarantined"
