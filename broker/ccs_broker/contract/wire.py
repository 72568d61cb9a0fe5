"""JSON in and out: one canonical form for every record, and validation errors that name no value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from ccs_broker.contract.event import Event
from ccs_broker.contract.job import Job
from ccs_broker.contract.outcome import ErrorInfo, Outcome, Timings, Usage
from ccs_broker.contract.parts import AudioPart, ImagePart, MediaRef, TextPart
from ccs_broker.contract.sampling import Sampling
from ccs_broker.contract.wording import expected_of, kind_of
from ccs_broker.contract.words import WIRE_VERSION
from ccs_broker.errors import InvalidInputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Record = TypeVar("Record", bound=BaseModel)

_RECORDS: Final[tuple[type[BaseModel], ...]] = (
    Job, Sampling, TextPart, ImagePart, AudioPart, MediaRef, Event, Outcome, ErrorInfo, Usage, Timings
)  # fmt: skip
#: Names that may appear in an error: our own fields. Any other name came from the caller.
_OUR_FIELDS: Final = {name: record for record in reversed(_RECORDS) for name in record.model_fields}
#: Steps of a location that say which member of a union was tried, not where the fault is.
_SILENT_STEPS: Final = frozenset({"text", "image", "audio"})
#: Fields that hold any JSON at all.
_FREE_FIELDS: Final = frozenset({"metadata", "data"})
_RULES: Final = {
    "missing": "is missing",
    "json_invalid": "is not JSON",
    "union_tag_invalid": "the type should be one of text, image, audio",
    "union_tag_not_found": "the type should be one of text, image, audio",
}
#: Most faults named in one message.
_MOST_NAMED: Final = 3


def dump_json(record: BaseModel) -> bytes:
    """The canonical JSON of a record: compact, fields in declared order, None left out, defaults written out.

    Raises:
        InvalidInputError: a string holds half a surrogate pair, which UTF-8 can't carry.
    """
    try:
        return record.model_dump_json(exclude_none=True).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        raise InvalidInputError("a text is not valid Unicode: it holds a lone surrogate") from None


def load_json(record: type[Record], data: bytes | str) -> Record:
    """Read a record from JSON, accepting fields it doesn't know.

    Raises:
        InvalidInputError: it isn't JSON, breaks a rule or has a higher version.
    """
    try:
        return record.model_validate_json(data)
    except ValidationError as error:
        # The cause would bring the value into every traceback.
        raise invalid_input(error) from None


def invalid_input(error: ValidationError) -> InvalidInputError:
    """Say which field breaks which rule, without what was in it."""
    details = error.errors(include_url=False)
    named = list(dict.fromkeys(_describe(detail) for detail in details))
    rest = len(named) - _MOST_NAMED
    return InvalidInputError("; ".join(named[:_MOST_NAMED]) + (f"; and {rest} more" if rest > 0 else ""))


def _describe(detail: ErrorDetails) -> str:
    field = _field_name(detail["loc"])
    rule = _rule(detail, field)
    return f"{field}: {rule}" if field else rule


def _rule(detail: ErrorDetails, field: str) -> str:
    """The broken rule in our words: pydantic's own change with its version, and some quote the value."""
    location, kind = detail["loc"], detail["type"]
    if kind in _RULES:
        return _RULES[kind]
    if kind == "value_error":
        # Raised by a validator of ours.
        return detail["msg"].removeprefix("Value error, ")
    if field == "v" and kind == "less_than_equal":
        return f"this reader knows wire version {WIRE_VERSION}, not a higher one"
    if len(location) > 1 and location[0] in _FREE_FIELDS:
        return "holds what JSON can't carry"
    name = next((step for step in reversed(location) if step in _OUR_FIELDS), None)
    item = bool(location) and isinstance(location[-1], int)
    expected = expected_of(_OUR_FIELDS[str(name)], str(name), item=item) if name else ""
    return f"should be {expected or 'an object'}, not {kind_of(detail['input'], kind)}"


def _field_name(location: tuple[int | str, ...]) -> str:
    """``parts[0].media.size_bytes``; stops at the first name that isn't ours."""
    name = ""
    for position, step in enumerate(location):
        if isinstance(step, int):
            name += f"[{step}]"
        elif step not in _OUR_FIELDS:
            break
        elif not (position > 0 and isinstance(location[position - 1], int) and step in _SILENT_STEPS):
            name = f"{name}.{step}" if name else step
    return name.removeprefix("sampling.")
