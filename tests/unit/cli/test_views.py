"""What the demo shows of its streams, on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from ccs_broker.client import Client
from ccs_broker.contract import Event, EventKind, Outcome, OutcomeState, Timings, Usage
from ccs_workers.cli.showcase import Strand
from ccs_workers.cli.views import loading_view, results_table, stream_view

REPORT = {"state": "loading", "models": [{"alias": "sim", "modality": "text", "state": "loading"}]}


@pytest.fixture
def strands() -> list[Strand]:
    # Attaching to a job asks the server nothing.
    with Client("redis://127.0.0.1:1/0") as client:
        return [
            Strand(modality=modality, job=client.job(f"{modality}-0123456789abcdef"))
            for modality in ("text", "vision", "audio")
        ]


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=90, highlight=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return Text.from_ansi(console.file.getvalue()).plain


def event(seq: int, kind: str, text: str = "", **data: object) -> Event:
    return Event(job="j", seq=seq, kind=EventKind(kind), text=text, data=data)


def end(strand: Strand) -> None:
    strand.state = "succeeded"
    strand.outcome = Outcome(
        state=OutcomeState.SUCCEEDED,
        text=strand.text,
        usage=Usage(completion_tokens=5),
        timings=Timings(first_output_s=0.25, finished_s=1.5),
        worker="local@here",
        attempts=1,
    )


def play(strands: list[Strand], console: Console) -> None:
    text, vision, _ = strands
    script = [
        (text, event(1, "queued")),
        (text, event(2, "started")),
        (text, event(3, "delta", "The capital ")),
        (text, event(4, "delta", "of France\nis ")),
        (vision, event(1, "progress", image=1, images=2, labels=[["cat", 0.9], ["dog", 0.1]])),
        (text, event(5, "delta", "Paris\x1b[2J.")),
        (text, event(6, "succeeded")),
    ]
    with stream_view(strands, console=console) as show:
        show(text, None)
        for strand, each in script:
            strand.take(each)
            show(strand, each)
        end(text)
        show(text, None)


def test_in_a_pipe_each_line_says_whose_it_is(strands):
    pipe = console(terminal=False)
    play(strands, pipe)
    assert [line.partition(" s  ")[2] for line in shown(pipe).splitlines()] == [
        "text    | [queued]",
        "text    | [started]",
        "text    | The capital of France",
        "text    | is ",
        "vision  | [progress: image 1 of 2, cat]",
        "text    | Paris\ufffd[2J.",
        "text    | [succeeded]",
    ]


def test_on_a_terminal_the_streams_stand_side_by_side(strands):
    terminal = console(terminal=True)
    play(strands, terminal)
    *_, head, first, second = shown(terminal).splitlines()[-10:-7]
    assert [word in head for word in ("text succeeded", "vision queued", "audio queued")] == [True] * 3
    assert "The capital of France" in first
    assert "is Paris\ufffd[2J." in second
    assert "1.50 s, 6 events" in shown(terminal).splitlines()[-1]


def test_only_the_end_of_a_long_text_is_shown(strands):
    terminal = console(terminal=True)
    text = strands[0]
    text.take(event(1, "delta", "".join(f"line {number}\n" for number in range(50))))
    with stream_view(strands, console=terminal) as show:
        show(text, None)
    assert "line 49" in shown(terminal)
    assert "line 20" not in shown(terminal)


def test_a_strand_gathers_what_its_events_say(strands):
    audio = strands[2]
    for each in (event(1, "queued"), event(2, "started"), event(3, "delta", "a"), event(4, "preempted")):
        audio.take(each)
    assert (audio.state, audio.text, audio.events, audio.succeeded) == ("preempted", "a", 4, False)
    audio.take(event(5, "resumed"))
    audio.take(event(6, "delta", "b"))
    assert (audio.state, audio.text) == ("running", "ab")
    end(audio)
    assert audio.succeeded


def test_the_table_has_a_row_for_each_job(strands):
    end(strands[0])
    pipe = console(terminal=False)
    pipe.print(results_table(strands, console=pipe))
    head, text, vision, _ = [line.split() for line in shown(pipe).splitlines()]
    assert head == ["job", "modality", "state", "first", "output", "duration", "tokens", "worker", "attempt"]
    assert text == ["text-012", "text", "succeeded", "0.25", "s", "1.50", "s", "5", "local", "1"]
    assert vision == ["vision-0", "vision", "queued", *["-"] * 5]


@pytest.mark.parametrize("terminal", [True, False])
def test_loading_engines_are_shown(terminal):
    target = console(terminal=terminal)
    with loading_view(target) as show:
        show({})
        show(REPORT)
        show(REPORT)
    assert "sim" in shown(target)
    assert "loading" in shown(target)
    if not terminal:
        assert shown(target).splitlines() == ["starting the worker", "text    sim: loading"]
