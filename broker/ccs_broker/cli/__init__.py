"""The command line `ccs`: the client's commands, and those that other packages join by entry point."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run `ccs` with this process's arguments and exit with its status."""
    from ccs_broker.cli.group import ccs

    # A name or a text that the terminal's encoding lacks must not end a command.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    ccs.main(prog_name="ccs")
