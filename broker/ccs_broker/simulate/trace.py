"""Traces: what arrived when and how large it was, read from a file or drawn anew like it."""

from __future__ import annotations

import csv
import math
import random
import re
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from ccs_broker.contract.words import Modality, QosClass
from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Row", "read_trace", "resample", "scaled", "seed_of"]

_SEED_IN_NAME: Final = re.compile(r"seed(\d+)")
#: Columns of the Azure LLM inference traces; they name neither class nor tenant nor modality.
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


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
        parse: Callable[[Mapping[str, str]], Row] = _parse
    elif set(_AZURE) <= columns:
        parse = _parse_azure
    else:
        raise ConfigurationError(f"trace {path}: needs the columns {', '.join(Row.__slots__)}")
    found = []
    for line in islice(reader, rows):
        try:
            if empty := [name for name, value in line.items() if value is None]:
                raise ValueError(f"the row ends before the column {empty[0]!r}")
            row = parse(line)
            if not all(0 <= value < math.inf for value in _numbers(row)):
                raise ValueError("a number below 0, or none at all")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"trace {path}, line {reader.line_num}: {error}") from None
        found.append(row)
    if not found:
        raise ConfigurationError(f"trace {path}: no requests")
    found.sort(key=lambda row: row.arrival_s)
    if parse is _parse_azure:
        begin_s = found[0].arrival_s
        found = [replace(row, arrival_s=row.arrival_s - begin_s) for row in found]
    return found


def _numbers(row: Row) -> tuple[float, ...]:
    return row.arrival_s, row.images, row.audio_s, row.context_tokens


def _parse(line: Mapping[str, str]) -> Row:
    return Row(
        arrival_s=float(line["arrival_s"]),
        modality=Modality(line["modality"]),
        qos=QosClass(line["qos"]),
        tenant=line["tenant"],
        images=int(line["images"]),
        audio_s=float(line["audio_s"]),
        context_tokens=int(line["context_tokens"]),
        generated_tokens=max(1, int(line["generated_tokens"])),
    )


def _parse_azure(line: Mapping[str, str]) -> Row:
    # Seven digits behind the second, where Python's own reader takes six at most.
    time = datetime.fromisoformat(line["TIMESTAMP"][:26] + "+00:00")
    return Row(
        arrival_s=time.timestamp(),
        modality=Modality.TEXT,
        qos=QosClass.STANDARD,
        tenant="azure",
        images=0,
        audio_s=0.0,
        context_tokens=int(line["ContextTokens"]),
        generated_tokens=max(1, int(line["GeneratedTokens"])),
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
    is lost.
    """
    draw = random.Random(seed)
    drawn: list[Row] = []
    for modality in Modality:
        own = [row for row in rows if row.modality is modality]
        if not own:
            continue
        gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(own)] or [0.0]
        arrival_s = draw.choice(gaps)
        # As many as could be among the first `count` of all.
        for _ in range(count):
            drawn.append(replace(draw.choice(own), arrival_s=arrival_s))
            arrival_s += draw.choice(gaps)
    drawn.sort(key=lambda row: row.arrival_s)
    return drawn[:count]


def scaled(rows: Sequence[Row], factor: float) -> list[Row]:
    """The same requests at arrival times ``factor`` times as far apart: above 1 lightens the load."""
    return [replace(row, arrival_s=row.arrival_s * factor) for row in rows]
