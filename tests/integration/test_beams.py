"""Beam search is refused with its code wherever a job comes from; it is never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery

from ccs_broker import Client
from ccs_broker.errors import InvalidInputError
from tests.workers import simulated_models, worker

if TYPE_CHECKING:
    from pathlib import Path

REFUSAL = "num_beams: beam search is not served; leave it out or give 1"


@pytest.mark.redis
def test_a_plain_producers_beams_end_failed_with_the_code(redis_url: str, tmp_path: Path) -> None:
    stock = Celery("producer", broker=redis_url, backend=redis_url, set_as_current=False)
    spec = {"prompt": "what follows", "max_new_tokens": 3}
    with worker(redis_url, simulated_models(tmp_path)), Client(redis_url) as client:
        beams = stock.send_task("ccs.run", args=[{**spec, "num_beams": 4}], queue="ccs.text")
        single = stock.send_task("ccs.run", args=[{**spec, "num_beams": 1}], queue="ccs.text")
        assert single.get(timeout=20)["state"] == "succeeded"
        outcome = client.job(beams.id).result(timeout=20)
        assert outcome.state.value == "failed"
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == ("INVALID_INPUT", REFUSAL)
        assert not outcome.error.retryable
        with pytest.raises(Exception, match="INVALID_INPUT: num_beams"):
            beams.get(timeout=20)
    stock.close()


def test_the_client_refuses_beams_before_anything_is_sent(redis_url: str) -> None:
    with Client(redis_url) as client, pytest.raises(InvalidInputError, match="beam search is not served"):
        client.submit("text", prompt="what follows", num_beams=4)
