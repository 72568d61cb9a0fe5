"""Traces: reading them, refusing wrong ones, drawing new ones alike."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from ccs_broker.contract.words import Modality, QosClass
from ccs_broker.errors import ConfigurationError
from ccs_broker.simulate.trace import read_trace, resample, scaled, seed_of

HEAD = "arrival_s,modality,qos,tenant,images,audio_s,context_tokens,generated_tokens\n"


def write(tmp_path, body, name="trace.csv"):
    path = tmp_path / name
    path.write_text(body)
    return path


@pytest.fixture
def mixed(tmp_path):
    """Text every second, long for tenant a and short for tenant b; vision every four."""
    lines = []
    for n in range(200):
        long = n % 3 == 0
        lines.append(
            f"{n},text,{'batch' if long else 'realtime'},{'a' if long else 'b'},0,0,{900 if long else 9},5"
        )
        if n % 4 == 0:
            lines.append(f"{n + 0.5},vision,standard,c,2,0,700,7")
    return read_trace(write(tmp_path, HEAD + "\n".join(lines)))


def test_a_line_is_a_request(tmp_path):
    path = write(tmp_path, HEAD + "2.5,audio,standard,t1,0,37.06,4,111\n0.5,vision,batch,t2,9,0,2275,0\n")
    first, second = read_trace(path)
    assert (first.arrival_s, first.modality, first.images, first.generated_tokens) == (0.5, "vision", 9, 1)
    assert (second.qos, second.tenant, second.audio_s) == (QosClass.STANDARD, "t1", 37.06)
    assert read_trace(path, 1) == [second]


def test_the_azure_traces_are_text_of_the_standard_class(tmp_path):
    body = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:05.0319600,3180,8\n"
    )
    first, second = read_trace(write(tmp_path, body))
    assert (first.arrival_s, second.arrival_s) == (0.0, pytest.approx(1.052))
    assert (second.modality, second.qos, second.context_tokens) == (Modality.TEXT, QosClass.STANDARD, 3180)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "needs the columns arrival_s, modality"),
        ("a,b\n1,2\n", "needs the columns"),
        (HEAD, "no requests"),
        (
            HEAD + "0,text,standard,t,0,0,1,1\nx,text,standard,t,0,0,1,1\n",
            "line 3: the column 'arrival_s' should be a number of seconds, 0 or more, not 'x'",
        ),
        (
            HEAD + "0,smell,standard,t,0,0,1,1\n",
            "'modality' should be one of text, vision, audio, fusion, not 'smell'",
        ),
        (HEAD + "0,text,soon,t,0,0,1,1\n", "line 2: the column 'qos' should be one of realtime, "),
        (
            HEAD + "0,text,standard,t,-1,0,1,1\n",
            "'images' should be a whole number from 0 to 1000000, not '-1'",
        ),
        (HEAD + "0,text,standard\n", "line 2: the row ends before the column 'tenant'"),
        (HEAD + "nan,text,standard,t,0,0,1,1\n", "line 2: the column 'arrival_s' .* not 'nan'"),
        (
            HEAD + "0,audio,standard,t,0,inf,1,1\n",
            "'audio_s' should be a number of seconds, 0 or more, up to 1e",
        ),
        (
            HEAD + f"0,text,standard,t,0,0,{'9' * 400},1\n",
            "the column 'context_tokens' should be a whole number",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n",
            "line 2: the column 'TIMESTAMP' should be a time",
        ),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path, body, said):
    with pytest.raises(ConfigurationError, match=said):
        read_trace(write(tmp_path, body))


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        read_trace(tmp_path / "none.csv")


def test_a_drawn_trace_keeps_rates_mix_and_whole_requests(mixed):
    drawn = resample(mixed, 3, 2000)
    text = [row for row in drawn if row.modality == "text"]
    assert len(drawn) == 2000
    assert len(text) / len(drawn) == pytest.approx(0.8, abs=0.02)
    assert drawn[-1].arrival_s == pytest.approx(1600, rel=0.05)
    assert {(row.qos, row.tenant, row.context_tokens) for row in text} == {
        ("batch", "a", 900),
        ("realtime", "b", 9),
    }
    assert mean(row.tenant == "a" for row in text) == pytest.approx(1 / 3, abs=0.05)
    assert [row.arrival_s for row in drawn] == sorted(row.arrival_s for row in drawn)


def test_a_seed_draws_the_same_trace_again_and_another_seed_another(mixed):
    assert resample(mixed, 3, 100) == resample(mixed, 3, 100)
    assert resample(mixed, 3, 100) != resample(mixed, 4, 100)


def test_scaling_moves_arrivals_apart(mixed):
    assert [row.arrival_s for row in scaled(mixed, 2.0)] == [2 * row.arrival_s for row in mixed]


def test_a_drawn_trace_names_its_seed():
    assert seed_of(Path("mixed_seed7.csv")) == 7
    assert seed_of(Path("azure_llm_2023_conv.csv")) is None


def test_a_spreadsheet_s_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + "1,text,batch,t,0,0,5,5\n").encode())
    assert [row.arrival_s for row in read_trace(path)] == [1.0]


def test_a_short_row_is_refused_by_line_and_column(tmp_path):
    path = write(tmp_path, HEAD + "1,text,batch,t,0,0,5,5\n2,text,batch,t,0\n")
    with pytest.raises(ConfigurationError, match=r"line 3: the row ends before the column 'audio_s'"):
        read_trace(path)


def test_a_column_that_nobody_reads_may_be_missing(tmp_path):
    path = write(tmp_path, HEAD.replace("\n", ",note\n") + "1,text,batch,t,0,0,5,5\n")
    assert [row.arrival_s for row in read_trace(path)] == [1.0]


def test_modalities_of_one_request_each_are_drawn_at_their_rate_and_not_at_once(tmp_path):
    body = HEAD + "1,text,batch,t,0,0,5,5\n3,vision,batch,t,1,0,5,5\n5,audio,batch,t,0,1,5,5\n"
    rows = read_trace(write(tmp_path, body))
    assert len({row.arrival_s for row in resample(rows, 5, 3)}) == 3
    many = resample(rows, 5, 3000)
    assert many[-1].arrival_s == pytest.approx(5000, rel=0.1)
    assert mean(row.modality == "vision" for row in many) == pytest.approx(1 / 3, abs=0.03)


def test_what_all_comes_at_once_is_drawn_at_once(tmp_path):
    rows = read_trace(write(tmp_path, HEAD + "0,text,batch,t,0,0,5,5\n" * 3))
    assert [row.arrival_s for row in resample(rows, 5, 3)] == [0.0, 0.0, 0.0]
