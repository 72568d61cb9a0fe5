"""What the demo shows: engines loading, streams side by side as they arrive, and a table at the end."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ccs_broker.cli.output import STATE_STYLES, make_table, printable, seconds, state_text
from ccs_broker.contract import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

    from ccs_workers.cli.showcase import Strand

__all__ = ["loading_view", "results_table", "stream_view"]

#: Lines of text in each panel.
_PANEL_LINES: Final = 8
_REDRAWS_PER_SECOND: Final = 12
#: A stream that speaks alone begins a new line after this many characters.
_LINE_CHARS: Final = 72
#: As much of an id as tells a few jobs apart and leaves room for the rest of the row.
_ID_CHARS: Final = 8


@contextmanager
def loading_view(console: Console) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a starting worker's engines; what it gives is called with the worker's latest report."""
    if not console.is_terminal:
        yield _LoadingLines(console)
        return
    spinner = Spinner("dots")
    with Live(spinner, console=console, refresh_per_second=_REDRAWS_PER_SECOND, transient=True) as live:

        def redraw(report: Mapping[str, Any]) -> None:
            rows = Table.grid(padding=(0, 2))
            for model in report.get("models", ()):
                state = Text(model["state"], style="green" if model["state"] == "ready" else "yellow")
                rows.add_row("  " + model["modality"], model["alias"], state)
            spinner.update(text=Text("starting the worker" if not report else "loading engines"))
            live.update(Group(spinner, rows))

        yield redraw


@contextmanager
def stream_view(
    strands: Sequence[Strand], *, console: Console
) -> Iterator[Callable[[Strand, Event | None], None]]:
    """Show streams: panels side by side on a terminal, lines with a prefix elsewhere.

    What it gives is called after each event, and between events with None.
    """
    if not console.is_terminal:
        lines = _Lines(console)
        yield lines
        lines.flush()
        return
    with Live(console=console, refresh_per_second=_REDRAWS_PER_SECOND, transient=False) as live:

        def redraw(_strand: Strand, _event: Event | None) -> None:
            live.update(_panels(strands, console))

        live.update(_panels(strands, console))
        yield redraw


def results_table(strands: Sequence[Strand], *, console: Console) -> Table:
    """One row a job: how it ended, how long it took, and who ran it."""
    columns = ("job", "modality", "state", ">first output", ">duration", ">tokens", "worker", ">attempt")
    return make_table(columns, [_row(strand) for strand in strands], console=console)


def _row(strand: Strand) -> tuple[str | Text, ...]:
    outcome = strand.outcome
    job = strand.job.id[:_ID_CHARS]
    if outcome is None:
        return (job, strand.modality, state_text(strand.state), "-", "-", "-", "-", "-")
    return (
        job,
        strand.modality,
        state_text(outcome.state.value),
        seconds(outcome.timings.first_output_s),
        seconds(outcome.timings.finished_s),
        str(outcome.usage.completion_tokens or "-"),
        # Where it runs is known: on this machine.
        (outcome.worker or "-").partition("@")[0],
        str(outcome.attempts),
    )


def _panels(strands: Sequence[Strand], console: Console) -> Table:
    """A column a modality; further jobs of a modality are panels below its first."""
    modalities = list(dict.fromkeys(strand.modality for strand in strands))
    columns = [[strand for strand in strands if strand.modality == modality] for modality in modalities]
    grid = Table.grid(expand=True)
    for _ in columns:
        grid.add_column(ratio=1)
    lines = max(2, _PANEL_LINES // len(columns[0]))
    width = max(10, console.width // len(columns) - 4)
    for row in zip(*columns, strict=True):
        grid.add_row(*(_panel(strand, lines, width, console) for strand in row))
    return grid


def _panel(strand: Strand, lines: int, width: int, console: Console) -> Panel:
    wrapped = Text(printable(strand.text)).wrap(console, width)
    body = Text("\n").join(wrapped[-lines:])
    facts = [f"{strand.events} events"]
    if strand.outcome is not None:
        facts.insert(0, seconds(strand.outcome.timings.finished_s))
    if strand.note:
        facts.append(strand.note)
    return Panel(
        body,
        title=Text.assemble((strand.modality, "bold"), " ", state_text(strand.state)),
        subtitle=Text(printable(", ".join(facts)), style="dim"),
        border_style=STATE_STYLES.get(strand.state, ""),
        height=lines + 2,
    )


class _LoadingLines:
    """A line whenever a model's state has changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, str] = {}
        console.print(Text("starting the worker"))

    def __call__(self, report: Mapping[str, Any]) -> None:
        for model in report.get("models", ()):
            if self._states.get(model["alias"], "declared") != model["state"]:
                self._states[model["alias"]] = model["state"]
                self._console.print(Text(f"{model['modality']:<7} {model['alias']}: {model['state']}"))


class _Lines:
    """Gathers the text of one stream until another one speaks or a line ends, so that lines stay readable."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._speaker: Strand | None = None
        self._text = ""

    def __call__(self, strand: Strand, event: Event | None) -> None:
        if event is None or (event.kind is EventKind.DELTA and not event.text):
            return
        if strand is not self._speaker:
            self.flush()
            self._speaker = strand
        if event.text:
            self._text += event.text
            *whole, self._text = self._text.split("\n")
            for line in filter(None, whole):
                self._print(strand, line)
            if len(self._text) > _LINE_CHARS:
                self.flush()
        else:
            self.flush()
            more = f": {strand.note}" if event.kind is EventKind.PROGRESS else ""
            self._print(strand, f"[{event.kind.value}{more}]")

    def flush(self) -> None:
        """Print what has gathered."""
        if self._speaker is not None and self._text:
            self._print(self._speaker, self._text)
        self._text = ""

    def _print(self, strand: Strand, text: str) -> None:
        passed = f"{time.monotonic() - self._started:7.2f} s"
        self._console.print(Text(f"{passed}  {strand.modality:<7} | {printable(text)}"), soft_wrap=True)
