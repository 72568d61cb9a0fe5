"""JSON Schemas of what crosses the wire, generated from the records and kept beside this file.

Regenerate them with ``python -m ccs_broker.contract.schema`` after a change that is meant.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ccs_broker.contract.event import Event
from ccs_broker.contract.job import Job
from ccs_broker.contract.outcome import Outcome

if TYPE_CHECKING:
    from pydantic import BaseModel

_RECORDS: Final[tuple[type[BaseModel], ...]] = (Job, Event, Outcome)
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def generated_schemas() -> dict[str, str]:
    """Text of every schema file by its name, as the records are now."""
    return {f"{record.__name__.lower()}.json": _schema_text(record) for record in _RECORDS}


def kept_schema(name: str) -> str:
    """Text of a schema file as it is kept in the package; ``FileNotFoundError`` for an unknown name."""
    return files("ccs_broker").joinpath("contract", "schema", name).read_text(encoding="utf-8")


def _schema_text(record: type[BaseModel]) -> str:
    schema = {"$schema": _DIALECT, **record.model_json_schema(mode="validation")}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the schema files."""
    folder = Path(__file__).with_name("schema")
    folder.mkdir(exist_ok=True)
    for name, text in generated_schemas().items():
        folder.joinpath(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
