"""Loads the Lua scripts, resolves their shared parts, and names them by hash."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_INCLUDE: Final = re.compile(r"^-- include:(.*)$", re.MULTILINE)
_SHEBANG: Final = "#!"


@dataclass(frozen=True, slots=True)
class Script:
    """One script as the server sees it; ``sha`` is what EVALSHA takes."""

    name: str
    source: str
    sha: str


class Scripts:
    """A set of scripts; the stock one is :data:`STOCK`.

    Args:
        replaced: shared parts in whose place another file is put, such as the clock of a simulation.
    """

    def __init__(self, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
        self._replaced = dict(replaced)
        self._read: dict[str, Script] = {}

    def get(self, name: str) -> Script:
        """Read ``lua/<name>.lua``, with the files it includes put before it.

        Raises:
            FileNotFoundError: no such script in the package.
        """
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._load(name)
        return found

    def _load(self, name: str) -> Script:
        folder = files("ccs_broker").joinpath("lua")
        body = folder.joinpath(f"{name}.lua").read_text(encoding="utf-8")
        first, _, rest = body.partition("\n")
        head, main = (f"{first}\n", rest) if first.startswith(_SHEBANG) else ("", body)
        included = _INCLUDE.search(main)
        libraries = included.group(1).split() if included else []
        names = [self._replaced.get(library, library) for library in libraries]
        parts = [folder.joinpath(f"{library}.lua").read_text(encoding="utf-8") for library in names]
        source = head + "\n".join([*parts, main])
        # SHA-1 is the server's own name for a script, not a matter of security.
        return Script(name=name, source=source, sha=sha1(source.encode(), usedforsecurity=False).hexdigest())


#: The scripts as they run everywhere but in a simulation.
STOCK: Final = Scripts()


def script(name: str) -> Script:
    """A stock script by its name."""
    return STOCK.get(name)


def virtual_time_scripts() -> Scripts:
    """The same scripts, but for the clock: they read the time, in microseconds since 1970, from ``ccs:clock``.

    For simulations on a server of their own; nothing else may ask for them.
    """
    return Scripts({"lib_clock": "lib_clock_virtual"})
