"""`ccs simulate` through the real scripts, on a private server with a virtual clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis
from click.testing import CliRunner

from ccs_broker.cli.group import ccs
from ccs_broker.simulate.compare import POLICY_NAMES
from ccs_broker.simulate.ledger_desk import DeskSettings, LedgerDesk
from ccs_broker.simulate.model import REFERENCE, DeviceModel
from ccs_broker.simulate.records import jobs_of
from ccs_broker.simulate.trace import read_trace, resample
from ccs_broker.simulate.worker import make_worker
from ccs_broker.simulate.world import World
from tests.source import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "arrival_s,modality,qos,tenant,images,audio_s,context_tokens,generated_tokens\n"
#: One slot, so that the order of first outputs is the order of claims.
ONE_SLOT = {"max_sequences": 1}
#: The first runs when the others come: 0.010 s and 2,000 tokens.
QUEUE = (
    "0,text,standard,a,0,0,2000,1\n"
    "0.01,text,batch,a,0,0,100,1\n"
    "0.02,text,realtime,a,0,0,1000,1\n"
    "0.03,audio,interactive,a,0,1.5,40,1\n"
)
FIRST_S = 0.010 + 2000 * 6e-5
BATCH_S, REALTIME_S, AUDIO_S = 0.010 + 100 * 6e-5, 0.010 + 1000 * 6e-5, 0.010 + 0.015 + 40 * 6e-5


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "small.csv"
    path.write_text(HEAD + QUEUE)
    return path


@pytest.fixture
def device(tmp_path) -> Path:
    path = tmp_path / "one_slot.json"
    path.write_text(json.dumps(ONE_SLOT))
    return path


def simulate(*arguments, code=0):
    run = CliRunner().invoke(ccs, ["simulate", *map(str, arguments)])
    assert run.exit_code == code, run.output
    return run


def simulate_json(*arguments):
    return json.loads(simulate(*arguments, "--json").stdout)


def waits(policy, rows, url, model):
    jobs = jobs_of(rows, model)
    modalities = tuple(dict.fromkeys(row.modality for row in rows))
    with closing(LedgerDesk(url, jobs, DeskSettings(policy=policy))) as desk:
        desk.open(["w"])
        World(jobs, [make_worker("w", model, modalities, None)], desk).run()
        desk.close_books()
    return jobs


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fifo", ("batch", "realtime", "audio")),
        ("class", ("realtime", "audio", "batch")),
        # Targets: the audio's is five seconds away, the batch job's ten minutes.
        ("edf", ("realtime", "audio", "batch")),
        # Work by weight: 10 * 2 * 32,400, 10 * 1 * 75,000 and 10 * 16 * 21,000 us of virtual time.
        ("balanced", ("audio", "realtime", "batch")),
    ],
)
def test_each_policy_orders_the_queue_as_its_formula_says(redis_url, trace, policy, order):
    jobs = waits(policy, read_trace(trace), redis_url, DeviceModel(max_sequences=1))
    seconds = {"batch": BATCH_S, "realtime": REALTIME_S, "audio": AUDIO_S}
    ends, now_s = {}, FIRST_S
    for name in order:
        now_s += seconds[name]
        ends[name] = now_s
    found = dict(zip(("batch", "realtime", "audio"), (job.first_s for job in jobs[1:]), strict=True))
    assert found == pytest.approx(ends)
    assert jobs[0].first_s == pytest.approx(FIRST_S)


def test_the_ledger_tells_the_same_times_in_its_own_log(redis_url, trace):
    jobs = waits("balanced", read_trace(trace), redis_url, DeviceModel(max_sequences=1))
    with closing(redis.Redis.from_url(redis_url, decode_responses=True)) as client:
        for job in jobs:
            log = client.xrange(f"ccs:log:{job.id}")
            assert [fields["k"] for _, fields in log] == ["queued", "started", "delta", "succeeded"]
            submitted, _, first, _ = (int(fields["t"]) for _, fields in log)
            assert (first - submitted) / 1000 == pytest.approx(job.wait_s, abs=0.0011)
        assert client.zcard("ccs:running") == 0
        assert client.zcard("ccs:waiting:ccs.text") == client.llen("ccs.text:1") == 0


def test_jobs_that_came_too_late_for_their_target_are_relegated_and_still_run(redis_url, tmp_path):
    """Twelve realtime jobs of 0.57 s of work at once on one slot: one can be in time, 0.9 s is the bound."""
    path = tmp_path / "burst.csv"
    path.write_text(HEAD + "0,audio,realtime,a,0,45,4,1\n" * 12)
    jobs = waits("balanced", read_trace(path), redis_url, DeviceModel(max_sequences=1))
    assert [job.met for job in jobs].count(True) == 1
    assert sum(job.relegated for job in jobs) == 11
    assert all(job.first_s is not None for job in jobs)


def test_the_same_seed_gives_the_same_json_and_another_seed_another(mixed_trace):
    arguments = ("--trace", mixed_trace, "--rows", 60, "--load", 1.2, "--policy", "balanced,static")
    first, again = (simulate(*arguments, "--seed", 3, "--json").stdout for _ in range(2))
    assert first == again
    assert simulate_json(*arguments, "--seed", 4)["runs"] != json.loads(first)["runs"]


@pytest.fixture(scope="session")
def mixed_trace(tmp_path_factory) -> Path:
    """A hundred requests drawn from a handful, at about the reference device's pace."""
    folder = tmp_path_factory.mktemp("trace")
    path = folder / "few.csv"
    path.write_text(
        HEAD
        + "0,text,realtime,a,0,0,300,40\n0.2,vision,interactive,b,6,0,2500,60\n0.3,audio,standard,c,0,30,4,90\n"
        "0.5,text,interactive,a,0,0,6000,200\n0.9,vision,batch,a,20,0,9000,100\n1.0,text,batch,b,0,0,900,400\n"
        "1.2,audio,realtime,c,0,9,4,30\n1.4,vision,standard,b,2,0,1500,50\n"
    )
    rows = resample(read_trace(path), 1, 100)
    path = folder / "mixed_seed1.csv"
    lines = [
        f"{row.arrival_s},{row.modality},{row.qos},{row.tenant},{row.images},{row.audio_s},{row.context_tokens},"
        f"{row.generated_tokens}\n"
        for row in rows
    ]
    path.write_text(HEAD + "".join(lines))
    return path


def test_all_policies_in_one_table(mixed_trace):
    lines = simulate("--trace", mixed_trace, "--load", "0.9,1.5").stdout.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("load ")]
    assert [lines[number].split(" of ")[0] for number in heads] == ["load 0.9", "load 1.5"]
    for number in heads:
        assert lines[number + 1].split()[:3] == ["policy", "mean", "vs"]
        assert [line.split()[0] for line in lines[number + 2 : number + 7]] == list(POLICY_NAMES)
        assert lines[number + 2].split()[2] == "+0.0%"


def test_json_holds_what_was_simulated_and_what_came_of_it(mixed_trace):
    found = simulate_json("--trace", mixed_trace, "--policy", "balanced", "--workers", 2, "--load", 1.5)
    assert (found["trace"], found["rows"], found["seed"], found["workers"]) == ("mixed_seed1.csv", 100, 1, 2)
    assert found["device"]["kv_tokens"] == REFERENCE.kv_tokens
    (run,) = found["runs"]
    assert (run["policy"], run["load"], run["jobs"]) == ("balanced", 1.5, 100)
    assert 0 < run["met_of_all"] <= 1
    assert set(run["met"]) == {"realtime", "interactive", "standard", "batch"}


def test_estimates_can_be_learnt_as_jobs_end(mixed_trace):
    found = simulate_json(
        "--trace", mixed_trace, "--policy", "balanced", "--estimates", "learnt", "--seed", 2
    )
    assert found["estimates"] == "learnt"
    assert found["runs"][0]["estimate_error"] < 0.25


def test_refused_jobs_missed_their_target_and_took_nothing(tmp_path, device):
    path = tmp_path / "burst.csv"
    path.write_text(HEAD + "0,audio,realtime,a,0,45,4,1\n0.1,audio,realtime,a,0,45,4,1\n" * 6)
    found = simulate_json(
        "--trace", path, "--device", device, "--scale", 1, "--policy", "balanced", "--overload", "refuse"
    )
    (run,) = found["runs"]
    assert run["refused"] > 0
    assert run["met_of_all"] <= (12 - run["refused"]) / 12


def test_the_seed_in_the_files_name_is_the_file_itself(mixed_trace):
    arguments = ("--trace", mixed_trace, "--policy", "fifo", "--rows", 50)
    assert simulate_json(*arguments) == simulate_json(*arguments, "--seed", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "best"], "should be of fifo, static, class, edf, balanced, or all, not 'best'"),
        (["--load", "0"], "should be a number from 0.0001 to 10000, or several"),
        (["--load", "1e-9"], "from 0.0001 to 10000"),
        (["--load", "inf"], "from 0.0001 to 10000"),
        (["--scale", "inf"], "should be a number from 1e-06 to 1000000, not 'inf'"),
        (["--scale", "1e300"], "not '1e300'"),
        (["--scale", "nan"], "not 'nan'"),
        (["--share", "text=nan"], "in all at most 1"),
        (
            ["--policy", "static", "--share", "text=1"],
            "no slot to the trace's audio jobs: name a larger share",
        ),
        (["--policy", "all", "--share", "text=0.9,audio=0.001"], "no slot to the trace's audio jobs"),
        (["--load", "1,x"], "not '1,x'"),
        (["--load", "1", "--scale", "2"], "give one of them"),
        (["--share", "text=0.9,vision=0.2"], "in all at most 1"),
        (["--share", "text"], "in all at most 1"),
        (["--workers", "0"], "should be a whole number from 1 to 1000, not 0"),
    ],
)
def test_wrong_usage_is_told(trace, arguments, said):
    run = simulate("--trace", trace, *arguments, code=2)
    assert said in " ".join(run.stderr.split())


def test_a_wrong_trace_is_told_with_its_line(tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text(HEAD + "0,text,standard,a,0,0,x,1\n")
    run = subprocess.run(
        [sys.executable, "-m", "ccs_broker.cli", "simulate", "--trace", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "wrong.csv, line 2" in run.stderr


def test_plots_are_four_files_a_load(mixed_trace, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    arguments = ("--trace", mixed_trace, "--rows", 40, "--policy", "fifo,balanced")
    simulate(*arguments, "--plots", folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{kind}_0.90.png" for kind in ("first_output", "targets_met", "unlucky", "fairness")}
    drawn = {path.name: path.read_bytes() for path in folder.iterdir()}
    simulate(*arguments, "--plots", folder)
    assert drawn == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_without_matplotlib_the_command_says_what_to_install(mixed_trace, tmp_path):
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['matplotlib'] = None; from ccs_broker.cli import main; main()",
            *("simulate", "--trace", mixed_trace, "--rows", "5", "--plots", tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "pip install 'ccs-workers[plots]'" in run.stderr


def test_the_commands_of_the_docs_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")
    commands = [line.split() for line in text.splitlines() if line.startswith("    ccs simulate ")]
    assert len(commands) >= 4
    for _, _, *arguments in commands:
        own = {"4000": 12, "plots": tmp_path, "0.9,1.5": 0.9}
        simulate(*(own.get(argument, argument) for argument in arguments))


@pytest.fixture
def sparse(tmp_path) -> Path:
    path = tmp_path / "sparse.csv"
    path.write_text(
        HEAD + "5,text,standard,a,0,0,100,1\n1,text,standard,a,0,0,100,1\n3,text,standard,a,0,0,100,1\n"
    )
    return path


def test_virtual_weeks_without_work_take_no_time(sparse):
    """5e6 seconds: five million sweeps, if each second had one."""
    began = time.monotonic()
    for estimates in ("known", "learnt"):
        found = simulate_json("--trace", sparse, "--scale", "1e6", "--estimates", estimates)
        for run in found["runs"]:
            assert run["longest_first_s"] == pytest.approx(0.016)
    assert time.monotonic() - began < 30


def test_a_trace_is_not_stretched_beyond_what_the_ledger_lasts(sparse):
    sparse.write_text(HEAD + "0,text,standard,a,0,0,100,1\n1.7e9,text,standard,a,0,0,100,1\n")
    told = simulate("--trace", sparse, "--scale", 1, code=2).stderr
    assert "would arrive after 1.97e+04 days, 100 are the most" in told


@pytest.mark.parametrize("rows", ["0,text,standard,a,0,0,100,1\n", "5,text,standard,a,0,0,100,1\n" * 2])
def test_one_time_of_arrival_makes_no_load_but_can_be_run(sparse, rows):
    sparse.write_text(HEAD + rows)
    told = " ".join(simulate("--trace", sparse, code=2).stderr.split())
    assert "a load needs two different times of arrival" in told
    assert "give --scale 1" in told
    (run,) = simulate_json("--trace", sparse, "--scale", 1, "--policy", "fifo")["runs"]
    assert run["load"] is None
    assert "load inf of capacity" in simulate("--trace", sparse, "--scale", 1, "--policy", "fifo").stdout


def test_one_row_is_explained_whatever_the_order_of_the_file(sparse):
    assert "requests (1) have one" in simulate("--trace", sparse, "--rows", 1, code=2).stderr
    simulate("--trace", sparse, "--rows", 1, "--scale", 1)


def test_a_few_requests_can_be_drawn_anew(sparse):
    assert simulate_json("--trace", sparse, "--seed", 5, "--policy", "fifo")["rows"] == 3
