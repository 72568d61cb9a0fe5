"""``make bench``: every benchmark in turn; ``make bench ARGS="latency text"`` names some."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Final

from benchmarks.report import machine

ALL: Final = ("latency", "throughput", "cost", "text", "pipelines")


def main() -> int:
    """Run the benchmarks that are named, all of them by default; 1 if a bar isn't met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME", help=", ".join(ALL))
    names = parser.parse_args().names or ALL
    print(machine())
    met = [import_module(f"benchmarks.{name}").main() for name in names]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
