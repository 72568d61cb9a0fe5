"""Loads the Lua scripts, resolves their shared parts, and names them by hash."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

_INCLUDE: Final = re.compile(r"^-- include:(.*)$", re.MULTILINE)
_SHEBANG: Final = "#!"


@dataclass(frozen=True, slots=True)
class Script:
    """One script as the server sees it; ``sha`` is what EVALSHA takes."""

    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """Read ``lua/<name>.lua``, with the files it includes put before it.

    Raises:
        FileNotFoundError: no such script in the package.
    """
    folder = files("ccs_broker").joinpath("lua")
    body = folder.joinpath(f"{name}.lua").read_text(encoding="utf-8")
    first, _, rest = body.partition("\n")
    head, main = (f"{first}\n", rest) if first.startswith(_SHEBANG) else ("", body)
    included = _INCLUDE.search(main)
    libraries = included.group(1).split() if included else []
    parts = [folder.joinpath(f"{library}.lua").read_text(encoding="utf-8") for library in libraries]
    source = head + "\n".join([*parts, main])
    # SHA-1 is the server's own name for a script, not a matter of security.
    return Script(name=name, source=source, sha=sha1(source.encode(), usedforsecurity=False).hexdigest())
