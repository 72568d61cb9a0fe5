"""What every benchmark prints: figures, ratios against their bar, and the machine they were measured on."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure; ``bar`` is the least (or, with ``at_most``, the highest) it should be."""

    name: str
    value: float
    unit: str = ""
    bar: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios of alternating runs, pair by pair."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of all lie, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def as_json(figures: Sequence[Figure]) -> str:
    """Figures for a program."""
    return json.dumps(
        {each.name: {"value": each.value, "unit": each.unit, "met": each.met} for each in figures}
    )


def machine() -> str:
    """Processor count, memory and the versions that matter."""
    names = ("celery", "kombu", "redis", "torch", "transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}, {versions}"


def show(title: str, figures: Sequence[Figure]) -> bool:
    """Print a table; True if every bar is met."""
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "bar", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for figure in figures:
        sign = "≤" if figure.at_most else "≥"
        bar = "" if figure.bar is None else f"{sign} {figure.bar:g} {figure.unit}"
        met = {None: "", True: "yes", False: "NO"}[figure.met]
        table.add_row(figure.name, f"{figure.value:,.2f} {figure.unit}", bar, met)
    Console(width=100).print(table)
    return all(figure.met is not False for figure in figures)
