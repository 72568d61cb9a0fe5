"""What the scripts wrote, as events: an entry of a job's log, or the JSON of its bell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pydantic_core import from_json

from ccs_broker import topology
from ccs_broker.contract.event import TERMINAL_KINDS, Event
from ccs_broker.contract.wire import load_json
from ccs_broker.errors import InternalError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Entries read from a log at once.
PAGE_ENTRIES: Final = 512

#: The bell as the scripts write it; nothing a job can influence comes before its kind.
_BELL_KIND: Final = re.compile(rb'\{"v":\d+,"job":"[^"]*","seq":\d+,"kind":"([a-z]+)"')
_TERMINAL: Final = frozenset(kind.value.encode() for kind in TERMINAL_KINDS)


@dataclass(frozen=True, slots=True)
class LogPage:
    """Events of one read, in order; ``full`` if there may be more behind them."""

    events: tuple[Event, ...]
    full: bool


def log_range(job_id: str, after: int, count: int = PAGE_ENTRIES) -> tuple[str | int, ...]:
    """The command that reads the next entries behind sequence number ``after``."""
    return ("XRANGE", topology.LOG + job_id, f"{after + 1}-0", "+", "COUNT", count)


def read_log(job_id: str, reply: object, count: int = PAGE_ENTRIES) -> LogPage:
    """Read the reply of :func:`log_range`; ``InternalError`` if an entry isn't one of ours."""
    entries = cast("Sequence[tuple[bytes, Sequence[bytes]]]", reply)
    return LogPage(
        tuple(event_from_log(job_id, entry, fields) for entry, fields in entries), len(entries) >= count
    )


def event_from_log(job_id: str, entry: bytes, fields: Sequence[bytes]) -> Event:
    """An event from its entry id (``<seq>-0``) and its flat list of names and values."""
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        data = named.get(b"d")
        return Event.model_validate(
            {
                "job": job_id,
                "seq": int(entry.partition(b"-")[0]),
                "kind": named[b"k"].decode(),
                "attempt": int(named[b"n"]),
                "at_ms": int(named[b"t"]),
                "step": named[b"s"].decode() if b"s" in named else None,
                "text": named.get(b"x", b"").decode(),
                "data": from_json(data) if data else {},
            }
        )
    except (KeyError, ValueError):
        # The cause may quote what is in the entry. pydantic's errors are ValueErrors.
        raise InternalError(f"an entry of the log of job {job_id} can't be read") from None


def event_from_bell(bell: bytes) -> Event | None:
    """An event from its bell; None if it can't be read, for the log tells more than a bell."""
    try:
        return load_json(Event, bell)
    except InvalidInputError:
        return None


def bell_ends_stream(bell: bytes) -> bool:
    """True if a bell announces a terminal event, without parsing all of it."""
    found = _BELL_KIND.match(bell)
    return found is not None and found.group(1) in _TERMINAL
