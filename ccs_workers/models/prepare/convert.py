"""The child process that converts: it alone imports torch, and it gives its memory back by ending.

``python -m ccs_workers.models.prepare.convert`` reads one JSON request from standard input (a list of
``{"alias", "engine", "unpacked", "target"}``) and writes one JSON line for each step to standard output.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import TextIO

#: Module of this package that converts for an engine.
CONVERTERS: Final = {"text": "text", "whisper": "whisper", "vision": "vision"}


def main() -> None:
    """Convert what the request lists, in its order."""
    # Libraries print as they like: what they write to standard output goes where errors go.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for item in json.load(sys.stdin):
        _convert(item, lines)


def _convert(item: dict[str, Any], lines: TextIO) -> None:
    def step(done: int, total: int) -> None:
        print(json.dumps({"alias": item["alias"], "done": done, "total": total}), file=lines, flush=True)

    step(0, 1)
    converter = import_module(f"ccs_workers.models.prepare.{CONVERTERS[item['engine']]}")
    target = Path(item["target"])
    target.mkdir(parents=True)
    converter.convert(Path(item["unpacked"]), target, step)
    print(json.dumps({"alias": item["alias"], "finished": True}), file=lines, flush=True)


if __name__ == "__main__":
    main()
