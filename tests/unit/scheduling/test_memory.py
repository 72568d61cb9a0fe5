"""What simulated models say of memory becomes the room of claims."""

from __future__ import annotations

import pytest

from ccs_broker.contract import Modality
from ccs_broker.contract.build import build_job
from ccs_broker.ledger import Claim
from ccs_broker.ledger.entries import sizes_of
from ccs_workers.models.modelfile import parse_model_text
from ccs_workers.scheduling.memory import memory_of

TEXT = """
[models.a]
modality = "text"
engine = "simulated"
memory_bytes = 10_000
weights_bytes = 1_000
bytes_per_job = 100
bytes_per_token = 10
default = true
[models.b]
modality = "text"
engine = "simulated"
weights_bytes = 500
bytes_per_job = 7
[models.eyes]
modality = "vision"
shares = "a"
"""


@pytest.fixture
def memory(tmp_path):
    return memory_of(parse_model_text(TEXT, tmp_path / "models.toml"))


def test_weights_come_first_and_an_engine_s_count_once(memory):
    assert memory.total_bytes == 8_500


def test_a_need_covers_any_job_of_its_sizes(memory):
    # Twelve words of a character each: 12 tokens at the most, and 8 new ones.
    assert memory.bytes_for("ccs.text", "", (23, 8, 0, 0)) == 100 + 10 * (12 + 8)
    assert memory.bytes_for("ccs.text", "b", (23, 8, 0, 0)) == 7
    assert memory.bytes_for("ccs.vision", "eyes", (0, 1, 3, 999)) == 115
    assert memory.bytes_for("ccs.audio", "", (1, 1, 1, 1)) == 0


def test_a_claim_occupies_what_the_script_reckoned(memory):
    job = build_job("text", {"prompt": "x " * 20, "max_new_tokens": 5}, job_id="a").job
    claim = Claim(
        id=job.id, attempt=1, queue="ccs.text", message=b"", payload=job.model_dump_json().encode(),
        seq=1, submitted_ms=0, expire_ms=1,
    )  # fmt: skip
    assert memory.bytes_of(claim) == memory.bytes_for("ccs.text", "", sizes_of(job).values()) > 300
    unreadable = Claim(
        id="x", attempt=1, queue="ccs.text", message=b"", payload=b"{", seq=1, submitted_ms=0, expire_ms=1
    )
    assert memory.bytes_of(unreadable) == 0


def test_room_is_what_a_share_leaves(memory):
    room = memory.room(0.5, 4_000)
    assert (room.total_bytes, room.free_bytes) == (4_250, 250)
    assert memory.room(1.0, 9_999).free_bytes == 0


def test_without_a_statement_memory_is_no_bound(tmp_path):
    plain = parse_model_text('[models.a]\nmodality = "text"\nengine = "simulated"\n', tmp_path / "m.toml")
    assert memory_of(plain) is None
    assert plain.modalities == (Modality.TEXT,)
