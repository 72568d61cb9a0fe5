"""The command line `ccs`: the client's commands, and those that other packages join by entry point."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run `ccs` with this process's arguments and exit with its status."""
    from ccs_broker.cli.group import ccs

    # Closed by the caller, as daemons do: Python then has no stream at all, and libraries expect one.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - likewise
    # A name or a text that the terminal's encoding lacks must not end a command.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    ccs.main(prog_name="ccs")
