"""A CUDA engine in its spawned process: right answers, speed, drift in fp32 and bf16."""

from __future__ import annotations

import time

import pytest

from ccs_workers.verify import VerifyOptions, verify
from tests.gpu.models import bench, spec_of, trail

pytestmark = [pytest.mark.gpu]


def test_greedy_text_in_fp32_equals_the_cpus(tiny):
    answers = {}
    for device in ("cuda", "cpu"):
        with bench(spec_of(tiny, device)) as found:
            assert found.info("random").device.startswith(device)
            jobs = [trail(number) for number in range(12)]
            found.drive(jobs)
        assert all(job.end.finish_reason in {"end", "length"} for job in jobs)
        answers[device] = [(job.text, job.token_ids) for job in jobs]
    assert answers["cuda"] == answers["cpu"]
    assert len(set(answers["cuda"])) == 12


def test_seeded_text_is_drawn_from_the_same_numbers_as_on_the_cpu(tiny):
    settings = {"temperature": 0.9, "top_p": 0.9, "top_k": 50}
    answers = {}
    for device in ("cuda", "cpu"):
        with bench(spec_of(tiny, device)) as found:
            jobs = [trail(number, **settings) for number in range(8)]
            found.drive(jobs)
        answers[device] = [job.token_ids for job in jobs]
    assert answers["cuda"] == answers["cpu"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_a_second(medium, dtype):
    tokens = 128
    for count in (1, 16):
        with bench(spec_of(medium, dtype=dtype)) as found:
            found.drive([trail(number, tokens=8) for number in range(count)])
            jobs = [trail(number, tokens=tokens) for number in range(count)]
            began = time.monotonic()
            found.drive(jobs)
            seconds = time.monotonic() - began
        made = sum(len(job.token_ids) for job in jobs)
        assert made
        print(f"\n{dtype}, batch {count}: {made / seconds:.0f} tokens/s ({made} tokens in {seconds:.2f} s)")


def test_no_drift_in_fp32(tiny):
    report = verify([spec_of(tiny)], VerifyOptions(jobs=16, neighbours=16))
    (model,) = report.models
    assert model.dtype == "float32"
    assert report.ok, model.findings
    assert (model.changed, model.leaks) == (0, 0)


@pytest.mark.parametrize("size", ["tiny", "medium"])
def test_drift_in_bf16_is_measured_and_nothing_leaks(size, request):
    spec = spec_of(request.getfixturevalue(size), dtype="bfloat16")
    (model,) = verify([spec], VerifyOptions(jobs=16, neighbours=16)).models
    assert model.dtype == "bfloat16"
    assert not model.promised
    assert model.leaks == 0
    assert model.ok, model.findings
    rate = 100 * model.changed / model.outputs
    print(f"\nbfloat16, {size}: {model.changed} of {model.outputs} outputs changed ({rate:.1f} %)")
    for way in model.ways:
        print(f"  {way.way.value}: {way.changed} of {way.outputs} changed, {way.cuts} cuts")
