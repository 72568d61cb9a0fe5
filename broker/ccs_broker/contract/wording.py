"""What a value should have been and what it is instead, in one wording for every caller; never the value itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract.limits import MAX_NAME_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

__all__ = ["Bounds", "bounds_of", "expected_of", "kind_of", "shown_number"]

#: What the patterns of our string fields ask for.
_FORMS: Final = {
    r"^[A-Za-z0-9][A-Za-z0-9._:@/-]*$": (
        f"1 to {MAX_NAME_CHARS} letters, digits or any of . _ : @ / -, the first a letter or digit"
    ),
    r"^[A-Za-z0-9_-]{1,64}$": "1 to 64 letters, digits, '-' or '_'",
    r"^[0-9a-f]{64}$": "64 hexadecimal digits in lower case",
}
_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a string"),
    ((bytes, bytearray, memoryview), "bytes"),
    ((list, tuple), "a list"),
    (dict, "an object"),
)
#: What broke a rule, where its kind alone wouldn't say it; by pydantic's name of the rule.
_FAULTS: Final = {
    "greater_than": "a smaller one",
    "greater_than_equal": "a smaller one",
    "less_than": "a larger one",
    "less_than_equal": "a larger one",
    "string_too_long": "a longer one",
    "string_too_short": "a shorter one",
    "string_pattern_mismatch": "a string of another form",
    "too_long": "a longer one",
    "too_short": "a shorter one",
    "finite_number": "infinity or no number at all",
    "string_unicode": "a string that is not valid Unicode",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The range of a number; None where it has no end."""

    least: float | None
    most: float | None
    #: ``least`` itself is outside.
    above: bool = False

    def __str__(self) -> str:
        low, high = shown_number(self.least), shown_number(self.most)
        if self.least is None:
            return f"up to {high}" if self.most is not None else ""
        if self.above:
            return f"above {low}" + (f" and at most {high}" if self.most is not None else "")
        return f"from {low} to {high}" if self.most is not None else f"of at least {low}"


def shown_number(value: float | None) -> str:
    """A bound as people write it: whole where it is whole."""
    return "" if value is None else str(int(value)) if value == int(value) else f"{value:g}"


def bounds_of(record: type[BaseModel], field: str) -> Bounds:
    """The range of a record's numeric field."""
    return _bounds(_plain(record, field))


def expected_of(record: type[BaseModel], field: str, *, item: bool = False) -> str:
    """What a field takes, or an item of it, as in "a whole number from 1 to 32768"; empty for what isn't plain."""
    schema = _plain(record, field)
    return _expected(schema.get("items", {}) if item else schema)


def kind_of(value: object, rule: str = "") -> str:
    """What was given instead: how it broke the rule, else its kind."""
    if rule in _FAULTS:
        return _FAULTS[rule]
    if value is None:
        return "null"
    if rule == "enum" and isinstance(value, str):
        return "another word"
    return next((kind for types, kind in _KINDS if isinstance(value, types)), type(value).__name__)


def _plain(record: type[BaseModel], field: str) -> Mapping[str, Any]:
    """The JSON schema of a field, without its null."""
    schema = record.model_json_schema()
    found: Mapping[str, Any] = schema["properties"][field]
    found = next((one for one in found.get("anyOf", ()) if one.get("type") != "null"), found)
    name = str(found.get("$ref", "")).rpartition("/")[2]
    return schema["$defs"].get(name, found) if name else found


def _bounds(schema: Mapping[str, Any]) -> Bounds:
    above = "exclusiveMinimum" in schema
    least = schema["exclusiveMinimum"] if above else schema.get("minimum")
    return Bounds(least=least, most=schema.get("maximum"), above=above)


def _expected(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    expected = ""
    match schema.get("type"):
        case "integer":
            expected = f"a whole number {_bounds(schema)}".rstrip()
        case "number":
            expected = f"a number {_bounds(schema)}".rstrip()
        case "string":
            form = _FORMS.get(schema.get("pattern", ""))
            expected = form or f"a string{_length(schema, 'Length', 'characters')}"
        case "array":
            each = schema.get("items", {})
            what = f", each {_expected(each)}" if each.get("type") == "string" else ""
            expected = f"a list{_length(schema, 'Items', 'items')}{what}"
        case "object":
            expected = "an object"
    return expected


def _length(schema: Mapping[str, Any], what: str, unit: str) -> str:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if most is None:
        return ""
    return f" of {least} to {most} {unit}" if least else f" of at most {most} {unit}"
