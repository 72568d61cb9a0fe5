"""What `verify` finds in engines that are sound, and in those that drift, leak, or don't keep to the protocol."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ccs_broker.contract import Modality
from ccs_broker.errors import EngineError, EngineLostError
from ccs_workers.engines.protocol import Delta, Done, Resume
from ccs_workers.engines.simulated.engine import SimulatedEngine
from ccs_workers.models.spec import ModelSpec
from ccs_workers.verify import FindingKind, VerifyOptions, verify
from ccs_workers.verify.records import Way
from tests.faulty_engines import DRIFTS_AT, InProcess

if TYPE_CHECKING:
    from ccs_workers.verify import Finding, ModelReport

CHANGED, LEAK, BROKEN = FindingKind.CHANGED, FindingKind.LEAK, FindingKind.BROKEN
OPTIONS = VerifyOptions(jobs=3, neighbours=5, patience_s=20)
CROWDED = {Way.BATCH, Way.REORDERED, Way.RESUMED, Way.KILLED}
CONTINUED = {Way.RESUMED, Way.KILLED}
MARKED = "2: seeded"


def spec_of(engine: str, alias: str = "sim", modality: str = "text", rate: float = 500) -> ModelSpec:
    return ModelSpec(
        alias=alias, modality=Modality(modality), engine=engine, options={"tokens_per_second": rate}
    )


class Sound(InProcess):
    engine_class = SimulatedEngine


def run(engine: str, process: type[InProcess] = InProcess, **options: int) -> ModelReport:
    (report,) = verify([spec_of(engine)], replace(OPTIONS, **options), start=process).models
    return report


def of_kind(report: ModelReport, kind: FindingKind) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind is kind]


def test_a_sound_engine_passes_in_every_way_and_is_really_cut():
    report = run("simulated", Sound, jobs=4)
    assert report.ok
    assert not report.findings
    by_way = {way.way: way for way in report.ways}
    assert list(by_way) == [way for way in Way if way is not Way.TOGETHER]
    assert by_way[Way.ALONE].outputs == 0
    assert min(way.outputs for way in report.ways[1:]) >= 4
    assert by_way[Way.RESUMED].cuts >= 4
    assert by_way[Way.KILLED].cuts >= 1
    assert (report.jobs, report.canaries, report.changed) == (4, 4, 0)


def test_all_models_at_once_and_every_modality():
    specs = [
        spec_of("simulated", alias, modality, rate)
        for alias, modality, rate in (
            ("a", "text", 500),
            ("b", "vision", 500),
            ("c", "audio", 0),
            ("d", "fusion", 500),
        )
    ]
    report = verify(specs, replace(OPTIONS, jobs=2), start=Sound)
    assert report.ok
    assert [model.alias for model in report.models] == ["a", "b", "c", "d"]
    assert all(model.ways[-1].way is Way.TOGETHER for model in report.models)


def test_jobs_that_are_over_before_a_cut_are_continued_from_the_log():
    (report,) = verify([spec_of("simulated", rate=0)], OPTIONS, start=Sound).models
    by_way = {way.way: way for way in report.ways}
    assert report.ok
    assert by_way[Way.RESUMED].outputs + by_way[Way.RESUMED].cuts > by_way[Way.BATCH].outputs
    assert by_way[Way.KILLED].outputs + by_way[Way.KILLED].cuts > by_way[Way.BATCH].outputs


@pytest.mark.parametrize(
    ("engine", "ways", "token", "character"),
    [
        ("drifting", CROWDED, None, True),
        ("drifting-tokens", CROWDED, DRIFTS_AT, False),
        ("drifting-resumed", CONTINUED, None, True),
        ("drifting-data", CROWDED, None, False),
    ],
)
def test_drift_is_found_with_job_and_place(engine, ways, token, character):
    report = run(engine)
    assert not report.ok
    changed = of_kind(report, CHANGED)
    assert {finding.job for finding in changed} == {MARKED}
    assert {finding.way for finding in changed} <= ways
    assert {finding.way for finding in changed} & ways
    # In a mixed batch nothing was cut, so the first place is where the fault begins.
    first = changed[0]
    assert first.character is not None if character else first.character is None
    if engine != "drifting-resumed":
        assert first.token == token
    if engine == "drifting-data":
        assert first.detail.startswith("data: ")
    if engine == "drifting":
        assert "'drift drift" in first.detail


def test_drift_in_half_precision_is_counted_and_no_fault():
    report = run("drifting-half")
    assert report.ok
    assert not report.promised
    assert report.dtype == "bfloat16"
    assert report.changed >= 1


@pytest.mark.parametrize(
    ("engine", "place"),
    [
        ("leaking", "text"),
        ("leaking-half", "text"),
        ("leaking-data", "data"),
        ("leaking-errors", "error message"),
    ],
)
def test_a_leak_is_found_with_whose_canary_it_is(engine, place):
    report = run(engine)
    leaks = of_kind(report, LEAK)
    assert not report.ok
    assert leaks
    assert all(f"is in its {place}" in finding.detail for finding in leaks)
    assert all(finding.detail.startswith("the canary of 'sim ") for finding in leaks)
    assert report.leaks == len(leaks)
    if place != "error message":
        assert {finding.job for finding in leaks} <= {MARKED, *neighbours(report)}


def neighbours(report: ModelReport) -> set[str]:
    return {finding.job for finding in report.findings if finding.job.startswith("neighbour ")}


def test_a_jobs_own_input_in_its_error_message_is_a_leak():
    report = run("telling-errors")
    assert not report.ok
    assert any(
        finding.job == "never said before" and finding.way is Way.ALONE for finding in of_kind(report, LEAK)
    )
    assert "error message" in of_kind(report, LEAK)[0].detail


class Unsteady(Sound):
    """Ends one job otherwise each time."""

    count = 0

    def emit(self, key, output):
        if isinstance(output, Done) and output.usage.completion_tokens > 24:
            Unsteady.count += 1
            output = replace(output, data={"count": Unsteady.count})
        super().emit(key, output)


def test_a_model_that_is_not_equal_to_itself_is_said_to_be_so():
    changed = of_kind(run("simulated", Unsteady), CHANGED)
    assert changed[0].way is Way.AGAIN
    assert changed[0].job == MARKED


class Talkative(Sound):
    """Goes on after a job's end."""

    def emit(self, key, output):
        super().emit(key, output)
        if isinstance(output, Done):
            super().emit(key, Delta(text="more", token_ids=(1,)))


class Credulous(Sound):
    """Continues whatever it is told, which it takes for the whole answer."""

    def submit(self, job):
        if job.resume and "never said" in job.resume.text:
            self.engine.start(replace(job, resume=None))
        else:
            super().submit(job)


class Gibberish(Sound):
    """Says what no event can hold."""

    def emit(self, key, output):
        super().emit(key, replace(output, text="\udcff") if isinstance(output, Delta) else output)

    def submit(self, job):
        super().submit(replace(job, resume=job.resume and Resume(text="")))


class Miscounting(Sound):
    """Counts a token too many."""

    def emit(self, key, output):
        if isinstance(output, Done):
            usage = output.usage.model_copy(update={"completion_tokens": output.usage.completion_tokens + 1})
            output = replace(output, usage=usage)
        super().emit(key, output)


@pytest.mark.parametrize(
    ("process", "fault"),
    [
        (Talkative, "said Delta after its end"),
        (Credulous, "it was taken, though"),
        (Gibberish, "can't be an event"),
        (Miscounting, "tokens came, and"),
    ],
)
def test_what_breaks_the_protocol_is_found_even_if_nothing_changed(process, fault):
    report = run("simulated", process)
    assert not report.ok
    assert any(fault in finding.detail for finding in of_kind(report, BROKEN))


class Mortal(Sound):
    """Dies of a long job."""

    def submit(self, job):
        if job.sampling.max_new_tokens > 24:
            self.engine.close()
            self.on_death("signal 11")
        super().submit(job)


class Silent(Sound):
    """Takes jobs and says nothing."""

    def submit(self, job):
        pass


def test_an_engine_that_dies_unasked_ends_the_run():
    with pytest.raises(EngineLostError, match="signal 11"):
        run("simulated", Mortal)


def test_an_engine_that_says_nothing_ends_the_run():
    with pytest.raises(EngineError, match="said nothing for 1 s"):
        run("simulated", Silent, patience_s=1)


def test_it_needs_neither_redis_nor_celery_nor_a_command_line():
    """So that the GPU checks run where only torch, transformers and pydantic are."""
    code = (
        "import sys\n"
        "for name in ('redis', 'celery', 'kombu', 'click', 'rich', 'torch', 'PIL', 'numpy', 'soundfile'):\n"
        "    sys.modules[name] = None\n"
        "import ccs_workers.verify, ccs_workers.devices\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
