"""What is printed: plain in pipes, safe on terminals, whole as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from ccs_broker.cli.output import echo_json, make_table, notes, plain_value, printable, seconds, state_text
from ccs_broker.client.records import JobState, JobStatus, QueueDepth, QueueReport
from ccs_broker.contract import Event, EventKind, Outcome, OutcomeState, Timings

STATUS = JobStatus(id="j1", state=JobState.WAITING, queue="ccs.text", position=0, submitted_ms=1)


def console(*, terminal: bool, width: int = 100, **options: object) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, **options)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_control_characters_do_not_reach_a_terminal():
    hostile = "a\x1b[2Jb\x07c\rd\x9be\u202ff\tg\nh\x00\x7f"
    assert printable(hostile) == "a\ufffd[2Jb\ufffdc\ufffdd\ufffde\u202ff\tg\nh\ufffd\ufffd"


@pytest.mark.parametrize("text", ["Grüße, 世界 🙂", "one\ntwo\tthree", ""])
def test_ordinary_text_is_left_alone(text):
    assert printable(text) == text


def test_records_become_plain_values():
    assert plain_value(STATUS)["state"] == "waiting"
    assert json.loads(json.dumps(plain_value(STATUS)))["position"] == 0
    report = QueueReport(queues=(QueueDepth(name="ccs.text", waiting=2, running=1, tickets=2),), delayed=3)
    assert plain_value(report) == {
        "queues": [{"name": "ccs.text", "waiting": 2, "running": 1, "tickets": 2, "relegated": 0}],
        "delayed": 3,
    }
    assert plain_value(Outcome(state=OutcomeState.FAILED, timings=Timings(finished_s=1.5)))["timings"] == {
        "started_s": None,
        "first_output_s": None,
        "finished_s": 1.5,
    }
    assert plain_value({"path": Path("/a"), 1: (1, 2)}) == {"path": "/a", "1": [1, 2]}


def test_json_is_one_line_whatever_the_text(capsys):
    echo_json(Event(job="j1", seq=1, kind=EventKind.DELTA, text="a\nb\u2028ü"))
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert printed.isascii()
    assert json.loads(printed)["text"] == "a\nb\u2028ü"


def test_a_table_in_a_pipe_has_no_frame_and_no_color():
    piped = console(terminal=False)
    piped.print(make_table(("name", ">count"), [("ccs.text", "12"), ("ccs.audio", "7")], console=piped))
    assert [line.rstrip() for line in shown(piped).splitlines()] == [
        "name       count",
        "ccs.text      12",
        "ccs.audio      7",
    ]


def test_a_table_on_a_terminal_has_a_ruled_head_and_markup_is_not_obeyed():
    terminal = console(terminal=True)
    terminal.print(
        make_table(("name",), [("[red]x[/red]\x1b[31m",), (state_text("failed"),)], console=terminal)
    )
    assert "────" in shown(terminal)
    assert "[red]x[/red]\ufffd[31m" in Text.from_ansi(shown(terminal)).plain
    assert "\x1b[31mfailed" in shown(terminal)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = console(terminal=True)
    terminal.print(state_text("failed"))
    assert "31m" not in shown(terminal)


def test_what_is_about_the_answer_goes_to_standard_error(capsys):
    notes().print("a note")
    assert capsys.readouterr() == ("", "a note\n")


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0.00 s"), (12.345, "12.35 s")])
def test_seconds_for_readers(value, text):
    assert seconds(value) == text
