"""A model that takes long to load: signs of life come before it is ready, and none is taken for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker import Client
from tests.workers import worker

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_that_loads_longer_than_a_sign_of_life(redis_url: str, tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text('[models.sim]\nmodality = "text"\nengine = "simulated"\nload_seconds = 5\n')
    with worker(redis_url, models), Client(redis_url) as client:
        assert client.submit("text", prompt="x", max_new_tokens=2).result(timeout=20).ok
