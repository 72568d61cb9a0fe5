"""How the command line prints: answers on standard output, everything about them on standard error.

Colors and spinners appear on terminals only, and never where NO_COLOR is set; what goes into a pipe is plain.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic import BaseModel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager


__all__ = [
    "STATE_STYLES",
    "echo_json",
    "make_table",
    "notes",
    "out",
    "plain_value",
    "print_facts",
    "printable",
    "seconds",
    "spinner",
    "state_text",
    "utc",
]

#: Wide enough that no row of a table in a pipe is ever folded.
_PIPE_WIDTH: Final = 240
#: Everything that could move a cursor or ring a bell, except tab and line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

STATE_STYLES: Final = {
    "waiting": "yellow",
    "delayed": "yellow",
    "queued": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "quarantined": "red",
    "cancelled": "magenta",
    "expired": "magenta",
}


def out() -> Console:
    """The console on standard output."""
    return _console(stderr=False)


def notes() -> Console:
    """The console on standard error, for what is about the answer."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    # Made anew each time: tests and callers may have replaced the streams.
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)


def printable(text: str) -> str:
    """Text without the control characters that could take over a terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def state_text(state: str) -> Text:
    """A job's state in its color."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def seconds(value: float | None) -> str:
    """Seconds for a reader; a dash where it didn't come to that."""
    return "-" if value is None else f"{value:.2f} s"


def utc(at_ms: int) -> str:
    """A time in ms since 1970 for a reader."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds")


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, a line each; what is unknown is left out, and a name in ``_ms`` is a time."""
    console = out()
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is None or value == "":
            continue
        shown = state_text(str(value)) if name == "state" else Text(printable(str(value)))
        if name.endswith("_ms") and isinstance(value, int):
            shown = Text(utc(value))
        label = name.removesuffix("_ms").replace("_", " ")
        console.print(Text.assemble((f"{label:<{width}}  ", "bold"), shown))


def spinner(message: str, console: Console | None = None) -> AbstractContextManager[object]:
    """A spinner on standard error while the block runs; nothing where that isn't a terminal.

    Lines printed on the same ``console`` meanwhile appear above it.
    """
    console = console or notes()
    return console.status(Text(message)) if console.is_terminal else nullcontext()


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, console: Console) -> Table:
    """A frame on a terminal, plain aligned columns elsewhere; a column named ``>x`` is flush right."""
    framed = console.is_terminal
    table = Table(box=SIMPLE_HEAD if framed else None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return table


def echo_json(value: object) -> None:
    """Print one line of JSON on standard output, at once."""
    click.echo(json.dumps(plain_value(value), allow_nan=False))


def plain_value(value: object) -> Any:
    """Records of the contract and of the client as values that JSON knows."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value
