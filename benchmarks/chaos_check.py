"""Reads every job of the ledger after a chaos run and holds it against what was accepted."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ccs_broker import topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from redis import Redis

    from benchmarks.chaos_plan import Wish

_CHUNK: Final = 200
_EXAMPLES: Final = 5
_TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled", "expired", "quarantined"})
#: Keys that may stay without a time to live: Kombu's exchange bindings.
_PERMANENT: Final = "_kombu.binding*"


class Entry(NamedTuple):
    """An entry of a job's log, read without the project's own reader."""

    seq: int
    kind: str
    attempt: int
    at_ms: int
    text: str
    data: Mapping[str, Any]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A job as the ledger tells it at the end."""

    id: str
    state: str
    outcome: Mapping[str, Any]
    entries: Sequence[Entry]

    @property
    def ended(self) -> bool:
        """Whether it has an outcome."""
        return self.state in _TERMINAL and bool(self.outcome)

    @property
    def text(self) -> str:
        """All deltas joined."""
        return "".join(entry.text for entry in self.entries if entry.kind == "delta")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens."""
        return tuple(token for entry in self.entries for token in entry.token_ids)

    @property
    def tokens_resumed(self) -> int:
        """Tokens that were decoded by a later attempt, or a later engine, than the first."""
        resumed = next(
            (i for i, entry in enumerate(self.entries) if entry.kind == "resumed"), len(self.entries)
        )
        return sum(len(entry.token_ids) for entry in self.entries[resumed:])


@dataclass(slots=True)
class Findings:
    """Faults of the product by what they are, with some examples of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    #: Jobs with a fault, whole.
    records: dict[str, Record] = field(default_factory=dict)

    def add(self, what: str, example: str, record: Record | None = None) -> None:
        """Count one."""
        if record is not None:
            self.records[record.id] = record
        self.counts[what] += 1
        shown = self.examples.setdefault(what, [])
        if len(shown) < _EXAMPLES:
            shown.append(example)


LOST: Final = "lost: accepted, without an outcome"
ENDS: Final = "jobs without exactly one terminal event"
NUMBERS: Final = "jobs with missing, repeated or reordered numbers"
TEXTS: Final = "texts that differ from the undisturbed run"
JOINED: Final = "outcomes that differ from their joined deltas"
STATES: Final = "jobs that ended as they must not"
STRANGERS: Final = "jobs that nobody submitted (run twice)"
ATTEMPTS: Final = "events of an attempt behind those of a later one"
KEYS: Final = "keys that never expire"
CANVASES: Final = "chains and chords that did not end well"
ALL: Final = (LOST, ENDS, NUMBERS, ATTEMPTS, TEXTS, JOINED, STATES, STRANGERS, CANVASES, KEYS)


def read_records(client: Redis) -> Iterator[Record]:
    """Every job the ledger holds, streams included, some hundred in a round trip."""
    ids = [
        key.decode().removeprefix(topology.JOB) for key in client.scan_iter(f"{topology.JOB}*", count=1000)
    ]
    for first in range(0, len(ids), _CHUNK):
        yield from _read_chunk(client, ids[first : first + _CHUNK])


def read_record(client: Redis, job: str) -> Record:
    """One job."""
    return _read_chunk(client, [job])[0]


def _read_chunk(client: Redis, chunk: Sequence[str]) -> list[Record]:
    with client.pipeline(transaction=False) as pipe:
        for job in chunk:
            pipe.hmget(topology.JOB + job, "state", "outcome")
            pipe.xrange(topology.LOG + job)
        replies = pipe.execute()
    return [
        Record(
            id=job,
            state=(state or b"").decode(),
            outcome=json.loads(outcome or b"{}"),
            entries=[_entry(*entry) for entry in log],
        )
        for job, (state, outcome), log in zip(chunk, replies[::2], replies[1::2], strict=True)
    ]


def _entry(number: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    return Entry(
        seq=int(number.partition(b"-")[0]),
        kind=fields[b"k"].decode(),
        attempt=int(fields[b"n"]),
        at_ms=int(fields[b"t"]),
        text=fields.get(b"x", b"").decode(),
        data=json.loads(fields.get(b"d") or b"{}"),
        token_ids=tuple(map(int, filter(None, fields.get(b"i", b"").split(b",")))),
    )


def check_stream(record: Record, findings: Findings) -> None:
    """What every stream must be, whatever its job."""
    numbers = [entry.seq for entry in record.entries]
    if numbers != list(range(1, len(numbers) + 1)):
        findings.add(NUMBERS, f"{record.id}: {numbers}", record)
    ends = [entry.kind for entry in record.entries if entry.kind in _TERMINAL]
    if ends != [record.state] or record.entries[-1].kind != record.state:
        findings.add(ENDS, f"{record.id}: {record.state}, {ends}", record)
    attempts = [entry.attempt for entry in record.entries]
    if attempts != sorted(attempts):
        findings.add(ATTEMPTS, f"{record.id}: {attempts}", record)
    # An outcome that no worker wrote (cancelled or expired while it waited between two attempts) has no text.
    if record.outcome.get("worker") and record.text != record.outcome.get("text", ""):
        findings.add(JOINED, record.id, record)


def check_job(record: Record, wish: Wish, findings: Findings, *, cancelled: bool) -> None:
    """What this job must have become."""
    allowed = {"quarantined"} if wish.poison else {"succeeded"}
    if cancelled:
        allowed |= {"cancelled"}
    if record.state not in allowed:
        findings.add(
            STATES, f"{record.id} ({wish.number}): {record.state} {record.outcome.get('error')}", record
        )
    if record.state == "succeeded" and record.outcome.get("text", "") != wish.expected:
        findings.add(TEXTS, f"{record.id} ({wish.number})", record)
    elif not wish.poison and not wish.expected.startswith(record.text):
        findings.add(TEXTS, f"{record.id} ({wish.number}), partial", record)


def check_keys(client: Redis, findings: Findings) -> None:
    """After all jobs have ended and all workers have gone, nothing may stay for ever."""
    keys = list(client.scan_iter(count=1000))
    for first in range(0, len(keys), 1000):
        chunk = keys[first : first + 1000]
        with client.pipeline(transaction=False) as pipe:
            for key in chunk:
                pipe.ttl(key)
            lives = pipe.execute()
        for key, life in zip(chunk, lives, strict=True):
            name = key.decode(errors="replace")
            if life == -1 and not fnmatch.fnmatchcase(name, _PERMANENT):
                findings.add(KEYS, name)
