"""The jobs that `verify` runs: their own words in each, the same for the same seed, and fit for their model."""

from __future__ import annotations

from random import Random

import pytest

from ccs_broker.contract import Modality
from ccs_workers.engines.media import check_audio, check_image
from ccs_workers.engines.media.audio import AudioLimits
from ccs_workers.engines.media.image import ImageLimits
from ccs_workers.engines.protocol import EngineInfo
from ccs_workers.models.spec import ModelSpec
from ccs_workers.verify.canaries import Aviary
from ccs_workers.verify.checks import JobMaker


def maker(modality: str, *, context: int | None = 8192, device: str = "cpu", seed: int = 0) -> JobMaker:
    spec = ModelSpec(alias="m", modality=Modality(modality), engine="text")
    info = EngineInfo(
        alias="m",
        modality=modality,
        device=device,
        dtype="float32",
        weights_bytes=0,
        load_s=0.0,
        context_tokens=context,
    )
    return JobMaker(spec, info, Random(seed), Aviary(Random(seed)))


@pytest.mark.parametrize("modality", list(Modality))
def test_each_job_has_a_word_of_its_own_and_the_same_seed_gives_the_same_jobs(modality):
    jobs = maker(modality).jobs(20)
    assert jobs == maker(modality).jobs(20)
    assert jobs != maker(modality, seed=1).jobs(20)
    assert len({job.name for job in jobs}) == len(jobs)
    words = [job.canary for job in jobs if not job.invalid]
    assert len(set(words)) == len(words) == 21
    for job in jobs:
        assert job.canary.lower() in job.job.prompt.lower()
    assert [job.name for job in jobs if job.must_fail] == ["never said before"]
    assert any(job.invalid for job in jobs)


def test_text_jobs_are_of_every_kind_and_fit_the_context():
    jobs = [job for job in maker("text").jobs(16) if not (job.invalid or job.must_fail)]
    sampled = [job.job.sampling for job in jobs]
    assert any(one.stop for one in sampled)
    assert any(one.top_p for one in sampled)
    assert any(one.top_k for one in sampled)
    assert {one.temperature > 0 for one in sampled} == {True, False}
    prompts = "".join(job.job.prompt for job in jobs)
    assert all(letter in prompts for letter in ("请", "👩‍👩‍👧‍👦", "e\u0301", "ש", "न"))
    for context in (64, 256, 512, 1024):
        for job in maker("text", context=context).jobs(16):
            size = len(job.job.prompt.encode("utf-8", "replace")) + job.job.sampling.max_new_tokens
            assert size <= context or job.must_fail


def test_the_simulated_engine_is_not_asked_for_what_it_does_not_know():
    jobs = maker("text", device="simulated").jobs(16)
    assert not any(job.job.sampling.stop for job in jobs)


@pytest.mark.parametrize("modality", ["vision", "audio"])
def test_media_can_be_read_but_for_those_that_are_broken(modality):
    for job in [*maker(modality).jobs(12), *maker(modality).neighbours(4)]:
        if job.invalid:
            continue
        for picture in job.job.images:
            check_image(picture, ImageLimits())
        for sound in job.job.audio:
            check_audio(sound, AudioLimits())
        assert job.job.images or job.job.audio


def test_some_neighbours_fail_and_some_are_cancelled():
    neighbours = maker("text").neighbours(16)
    assert sum(job.must_fail for job in neighbours) == 2
    assert sum(job.stop_after is not None for job in neighbours) == 2
    more = maker("text")
    assert not {job.name for job in more.neighbours(3)} & {job.name for job in more.neighbours(3)}
