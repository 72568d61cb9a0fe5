"""Where two runs of one job differ, and what is wrong with a run whatever the other gave; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from ccs_workers.engines.protocol import Done, Failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccs_workers.verify.trail import Trail

__all__ = ["Difference", "audit", "difference", "places_of"]

#: Characters of an answer that are shown where it begins to differ.
_SHOWN: Final = 16
#: Scores are rounded to four digits by those who tell them; the last one may fall either way.
_SCORE: Final = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place at which a run differs from the job alone."""

    token: int | None = None
    character: int | None = None
    detail: str


def difference(alone: Trail, other: Trail) -> Difference | None:
    """Compare everything but times: tokens, text, progress, and how and with what the job ended."""
    token = _first(alone.token_ids, other.token_ids)
    character = _first(alone.text, other.text)
    if character is not None:
        detail = f"{_shown(other.text, character)} instead of {_shown(alone.text, character)}"
        return Difference(token=token, character=character, detail=detail)
    if token is not None:
        return Difference(token=token, detail="other tokens of the same text")
    for name, ours, theirs in _facts(alone, other):
        if not _same(ours, theirs):
            return Difference(detail=f"{name}: {_brief(theirs)} instead of {_brief(ours)}")
    return None


def _first(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    nothing = object()
    pairs = enumerate(zip_longest(ours, theirs, fillvalue=nothing))
    return next((place for place, (one, other) in pairs if one != other), None)


def _facts(alone: Trail, other: Trail) -> Iterator[tuple[str, Any, Any]]:
    # How it ended first: what it lacks for that is said less well by what it lacks.
    ends = [_end_of(trail) for trail in (alone, other)]
    for name in ("ended", "finish reason", "message"):
        yield name, ends[0].get(name), ends[1].get(name)
    yield "progress", alone.progress, other.progress
    for name in ("data", "usage"):
        yield name, ends[0].get(name), ends[1].get(name)


def _end_of(trail: Trail) -> dict[str, Any]:
    match trail.end:
        case Done() as done:
            usage = done.usage.model_dump(exclude={"device_s"})
            return {
                "ended": "succeeded",
                "finish reason": done.finish_reason,
                "data": dict(done.data),
                "usage": usage,
            }
        case Failed() as failed:
            return {"ended": f"failed with {failed.code}", "message": failed.message}
        case None:
            return {"ended": "not at all"}


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) <= _SCORE
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _shown(text: str, place: int) -> str:
    return repr(text[place : place + _SHOWN]) if place < len(text) else "the end"


def _brief(value: object) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    limit = 6 * _SHOWN
    return shown if len(shown) <= limit else shown[:limit] + " …"


def audit(trail: Trail) -> list[str]:
    """What a run says that can't be right: its stream, its stop strings, its counts, and where its parts end."""
    faults = list(trail.faults)
    if isinstance(trail.end, Done):
        faults += _wrong_text(trail, trail.end)
        faults += _wrong_counts(trail, trail.end)
    return faults


def _wrong_text(trail: Trail, end: Done) -> Iterator[str]:
    if any(stop in trail.text for stop in trail.check.job.sampling.stop):
        yield "a stop string is in its text"
    ends = [data["text_end"] for data in trail.progress if "text_end" in data]
    whole = end.finish_reason != "cancelled"
    if ends != sorted(ends) or (whole and ends and ends[-1] != len(trail.text)):
        yield f"its parts end at {ends}, its text after {len(trail.text)} characters"


def _wrong_counts(trail: Trail, end: Done) -> Iterator[str]:
    tokens, most = len(trail.token_ids), trail.check.job.sampling.max_new_tokens
    if tokens > most:
        yield f"{tokens} tokens, where {most} are the most"
    if trail.token_ids and end.usage.completion_tokens != tokens:
        yield f"{tokens} tokens came, and {end.usage.completion_tokens} are counted"
    for part, parts in (("window", "windows"), ("image", "images")):
        numbers = [data[part] for data in trail.progress if part in data]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"its {parts} came as {numbers}"
        counts = {data[parts] for data in trail.progress if part in data and parts in data}
        if end.finish_reason not in {"cancelled"} and numbers and counts != {len(numbers)}:
            yield f"{len(numbers)} {parts} came, of {sorted(counts)}"


def places_of(trail: Trail) -> Iterator[tuple[str, str]]:
    """Everything that a caller gets to read of a run, by the name of its place."""
    yield "text", trail.text
    for number, data in enumerate(trail.progress, start=1):
        yield f"progress {number}", json.dumps(data, ensure_ascii=False, default=str)
    match trail.end:
        case Done() as done:
            yield "data", json.dumps(dict(done.data), ensure_ascii=False, default=str)
        case Failed() as failed:
            yield "error message", failed.message
        case None:
            pass
