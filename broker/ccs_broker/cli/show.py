"""Shows one job to the caller: its stream as it arrives, and how it ended."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from ccs_broker.cli.failures import EXIT_NOT_SUCCEEDED
from ccs_broker.cli.output import echo_json, notes, plain_value, printable, seconds, spinner, state_text
from ccs_broker.cli.watch import JobWatch
from ccs_broker.contract import EventKind

if TYPE_CHECKING:
    from rich.console import Console

    from ccs_broker.client import Client, JobHandle
    from ccs_broker.contract import Event, Outcome

__all__ = ["exit_code_for", "progress_of", "show_outcome", "show_result", "show_stream", "summary_of"]

#: What a spinner says after each kind of event, until the next one.
_WAITING_FOR: Final = {EventKind.QUEUED: "waiting for a worker", EventKind.STARTED: "running"}


def exit_code_for(outcome: Outcome) -> int:
    """0 for a job that succeeded, 3 for any other end."""
    return 0 if outcome.ok else EXIT_NOT_SUCCEEDED


def show_outcome(job_id: str, outcome: Outcome, *, as_json: bool, with_text: bool = True) -> int:
    """Print the outcome, its text on standard output, and return the exit code it stands for."""
    if as_json:
        echo_json({"id": job_id, **plain_value(outcome)})
        return exit_code_for(outcome)
    if with_text and outcome.text:
        click.echo(_for_stdout(outcome.text))
    console = notes()
    console.print(summary_of(outcome))
    if outcome.error is not None:
        console.print(Text(printable(f"error: {outcome.error.code}: {outcome.error.message}"), style="red"))
    return exit_code_for(outcome)


def show_stream(client: Client, job: JobHandle, *, after: int, timeout_s: float | None, as_json: bool) -> int:
    """Print events after number ``after`` as they arrive, then the outcome; return the exit code."""
    console = notes()
    watch = _watch(client, job, timeout_s, console)
    if as_json:
        for event in watch.events(after):
            echo_json(event)
    else:
        _follow(watch, after, console)
    return show_outcome(job.id, watch.outcome(), as_json=as_json, with_text=False)


def show_result(client: Client, job: JobHandle, *, timeout_s: float | None, as_json: bool) -> int:
    """Wait for the job's end and print its outcome; return the exit code."""
    console = notes()
    with spinner(f"{job.id}: waiting for its end", console):
        outcome = _watch(client, job, timeout_s, console).outcome()
    return show_outcome(job.id, outcome, as_json=as_json)


def _watch(client: Client, job: JobHandle, timeout_s: float | None, console: Console) -> JobWatch:
    def say(line: str) -> None:
        console.print(Text(printable(f"note: {line}"), style="yellow"), soft_wrap=True)

    return JobWatch(client, job, timeout_s, say)


def summary_of(outcome: Outcome) -> Text:
    """State, tokens, times, worker and attempts, in one line."""
    facts = []
    if outcome.usage.completion_tokens:
        facts.append(f"{outcome.usage.completion_tokens} tokens")
    if outcome.timings.first_output_s is not None:
        facts.append(f"first output {seconds(outcome.timings.first_output_s)}")
    if outcome.timings.finished_s is not None:
        facts.append(f"done {seconds(outcome.timings.finished_s)}")
    if outcome.model:
        facts.append(f"model {outcome.model}")
    if outcome.worker:
        facts.append(f"worker {outcome.worker}")
    if outcome.attempts:
        facts.append(f"attempt {outcome.attempts}")
    return Text(", ").join([state_text(outcome.state.value), *(Text(printable(fact)) for fact in facts)])


def progress_of(event: Event) -> str:
    """How far media has been looked at: "window 2 of 4", "image 1 of 1, espresso"; may be empty."""
    said = []
    for one, all_ in (("window", "windows"), ("image", "images")):
        if one in event.data and all_ in event.data:
            said.append(f"{one} {event.data[one]} of {event.data[all_]}")
    match event.data.get("labels"):
        # Pairs of label and score, the likeliest first.
        case [[str(label), *_], *_]:
            said.append(printable(label))
    return ", ".join(said)


def _follow(watch: JobWatch, after: int, console: Console) -> None:
    """Write the deltas' texts to standard output; a spinner shows what is waited for until the first.

    A pipeline's steps may speak in turns: each turn begins with the step's name on a line of its own.
    """
    ended_line, speaker = True, None
    with ExitStack() as until_text:
        until_text.enter_context(spinner(f"{watch.job.id}: waiting", console))
        for event in watch.events(after):
            if event.text:
                until_text.close()
                if event.step != speaker:
                    speaker = event.step
                    click.echo(f"{'' if ended_line else chr(10)}[{speaker}] ", nl=False)
                click.echo(_for_stdout(event.text), nl=False)
                ended_line = event.text.endswith("\n")
            elif event.kind in _WAITING_FOR and "relegated" not in event.data and after == 0 and ended_line:
                until_text.close()
                until_text.enter_context(spinner(f"{watch.job.id}: {_WAITING_FOR[event.kind]}", console))
            elif (note := _note_of(event)) and (ended_line or not sys.stdout.isatty()):
                # On a terminal a note would land in the middle of the text's line.
                until_text.close()
                console.print(Text(note, style="dim"))
    if not ended_line:
        click.echo()


def _note_of(event: Event) -> str:
    """A line about an event that has no text of its own; empty for one not worth a line."""
    if event.kind in (EventKind.PREEMPTED, EventKind.RESUMED):
        return f"[{event.kind.value}, attempt {event.attempt}]"
    if event.kind is EventKind.QUEUED and "relegated" in event.data:
        if event.data["relegated"]:
            return "[its target can't be met any more: it runs on leftover capacity]"
        return "[its target can be met again]"
    if event.step is not None and event.data.get("ended", "succeeded") != "succeeded":
        how = f"{event.data['ended']} {event.data.get('code', '')}".rstrip()
        return f"[step {event.step}: {printable(how)}]"
    if event.kind is EventKind.PROGRESS and (progress := progress_of(event)):
        return f"[{progress}]"
    return ""


def _for_stdout(text: str) -> str:
    """The text itself for a pipe or a file; without control characters for a terminal."""
    return printable(text) if sys.stdout.isatty() else text
