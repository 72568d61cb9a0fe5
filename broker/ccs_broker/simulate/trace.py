"""Traces: what arrived when and how large it was, read from a file or drawn anew like it."""

from __future__ import annotations

import csv
import math
import random
import re
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from ccs_broker.contract.words import Modality, QosClass
from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Line = Mapping[str, str | None]

__all__ = ["Row", "read_trace", "resample", "scaled", "seed_of"]

_SEED_IN_NAME: Final = re.compile(r"seed(\d+)")
#: Columns of the Azure LLM inference traces; they name neither class nor tenant nor modality.
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
#: Bounds of one request: whatever it asks for, a device gets through it in a time that can be waited for.
_LARGEST_COUNT: Final = 1_000_000
_LONGEST_AUDIO_S: Final = 1e6
_SHOWN_CHARS: Final = 40

_Value = TypeVar("_Value")
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of a trace."""

    #: Seconds from the trace's beginning.
    arrival_s: float
    modality: Modality
    qos: QosClass
    tenant: str
    images: int
    audio_s: float
    context_tokens: int
    generated_tokens: int


def read_trace(path: Path, rows: int | None = None) -> list[Row]:
    """Read a trace, or its first ``rows`` requests; they are in order of arrival.

    Two kinds of CSV are known: ``arrival_s, modality, qos, tenant, images, audio_s, context_tokens,
    generated_tokens``, and the Azure LLM inference trace (``TIMESTAMP, ContextTokens, GeneratedTokens``), whose
    requests are text of one tenant and of the class `standard`.

    Raises:
        ConfigurationError: the file can't be read, holds nothing, or a line of it is wrong; the line is named.
    """
    try:
        # Spreadsheets put a byte order mark before the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(csv.DictReader(file), path, rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"trace {path}: {error}") from None


def _read(reader: csv.DictReader[str], path: Path, rows: int | None) -> list[Row]:
    columns = set(reader.fieldnames or ())
    if set(Row.__slots__) <= columns:
        parse: Callable[[Line], Row] = _parse
    elif set(_AZURE) <= columns:
        parse = _parse_azure
    else:
        raise ConfigurationError(f"trace {path}: needs the columns {', '.join(Row.__slots__)}")
    found = []
    for line in islice(reader, rows):
        try:
            found.append(parse(line))
        except _WrongCell as error:
            raise ConfigurationError(f"trace {path}, line {reader.line_num}: {error}") from None
    if not found:
        raise ConfigurationError(f"trace {path}: no requests")
    found.sort(key=lambda row: row.arrival_s)
    if parse is _parse_azure:
        begin_s = found[0].arrival_s
        found = [replace(row, arrival_s=row.arrival_s - begin_s) for row in found]
    return found


class _WrongCell(ValueError):
    """Says which column holds what it should not."""


def _cell(line: Line, column: str, read: Callable[[str], _Value], expected: str) -> _Value:
    """Read one cell; ``read`` refuses with a ValueError."""
    text = line[column]
    if text is None:
        raise _WrongCell(f"the row ends before the column {column!r}")
    try:
        return read(text)
    except ValueError:
        raise _WrongCell(f"the column {column!r} should be {expected}, not {text[:_SHOWN_CHARS]!r}") from None


def _whole(line: Line, column: str) -> int:
    def read(text: str) -> int:
        if not 0 <= (value := int(text)) <= _LARGEST_COUNT:
            raise ValueError
        return value

    return _cell(line, column, read, f"a whole number from 0 to {_LARGEST_COUNT}")


def _seconds(line: Line, column: str, most_s: float = math.inf) -> float:
    def read(text: str) -> float:
        if not 0 <= (value := float(text)) <= most_s or math.isinf(value):
            raise ValueError
        return value

    upper = "" if math.isinf(most_s) else f", up to {most_s:g}"
    return _cell(line, column, read, f"a number of seconds, 0 or more{upper}")


def _word(line: Line, column: str, words: type[_Word]) -> _Word:
    return _cell(line, column, words, f"one of {', '.join(words)}")


def _parse(line: Line) -> Row:
    return Row(
        arrival_s=_seconds(line, "arrival_s"),
        modality=_word(line, "modality", Modality),
        qos=_word(line, "qos", QosClass),
        tenant=_cell(line, "tenant", str, "a name"),
        images=_whole(line, "images"),
        audio_s=_seconds(line, "audio_s", _LONGEST_AUDIO_S),
        context_tokens=_whole(line, "context_tokens"),
        generated_tokens=max(1, _whole(line, "generated_tokens")),
    )


def _timestamp(text: str) -> float:
    # Seven digits behind the second, where Python's own reader takes six at most.
    return datetime.fromisoformat(text[:26] + "+00:00").timestamp()


def _parse_azure(line: Line) -> Row:
    return Row(
        arrival_s=_cell(line, "TIMESTAMP", _timestamp, "a time like 2023-11-16 18:15:46.6805900"),
        modality=Modality.TEXT,
        qos=QosClass.STANDARD,
        tenant="azure",
        images=0,
        audio_s=0.0,
        context_tokens=_whole(line, "ContextTokens"),
        generated_tokens=max(1, _whole(line, "GeneratedTokens")),
    )


def seed_of(path: Path) -> int | None:
    """The seed a drawn trace names in its file name (``mixed_seed7.csv``), or None."""
    found = _SEED_IN_NAME.search(path.stem)
    return int(found[1]) if found else None


def resample(rows: Sequence[Row], seed: int, count: int) -> list[Row]:
    """Draw ``count`` requests with the trace's distributions.

    For each modality, requests are drawn from its requests with replacement, each whole, so that sizes, class and
    tenant keep going together; and the gaps between its arrivals from its gaps, apart from the requests. So each
    modality keeps its rate and its burstiness, and the modalities their mix. What depended on time (a busy hour)
    is lost. Where a modality's requests have no gaps, because there is one or all come at once, gaps are drawn from
    the exponential distribution of its rate.
    """
    draw = random.Random(seed)
    drawn: list[Row] = []
    for modality in Modality:
        own = [row for row in rows if row.modality is modality]
        if not own:
            continue
        gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(own)]
        next_gap_s = partial(_gap_s, draw, gaps, rows[-1].arrival_s / len(own))
        arrival_s = next_gap_s()
        # As many as could be among the first `count` of all.
        for _ in range(count):
            drawn.append(replace(draw.choice(own), arrival_s=arrival_s))
            arrival_s += next_gap_s()
    drawn.sort(key=lambda row: row.arrival_s)
    return drawn[:count]


def _gap_s(draw: random.Random, gaps: Sequence[float], mean_s: float) -> float:
    if any(gaps):
        return draw.choice(gaps)
    return draw.expovariate(1 / mean_s) if mean_s else 0.0


def scaled(rows: Sequence[Row], factor: float) -> list[Row]:
    """The same requests at arrival times ``factor`` times as far apart: above 1 lightens the load."""
    return [replace(row, arrival_s=row.arrival_s * factor) for row in rows]
