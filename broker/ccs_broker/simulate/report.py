"""A comparison as a table for people and as values for machines."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract.words import QosClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.simulate.compare import Comparison, Run

__all__ = ["COLUMNS", "as_value", "table_rows"]

#: Columns of the table, one row a policy; ``>`` is flush right.
COLUMNS: Final = (
    "policy", ">mean", ">vs fifo", ">RT+int", ">vs fifo", ">met", ">RT", ">int", ">std", ">batch", ">RT+int",
    ">of all", ">p99 RT", ">longest", ">(kept)", ">relegated", ">refused", ">preempted", ">Jain", ">jobs/s",
)  # fmt: skip
_FIFO: Final = "fifo"


def table_rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """The rows of one load, in the order of ``COLUMNS``; without FIFO among them its columns are dashes."""
    base = next((run.summary for run in runs if run.policy == _FIFO), None)
    rows = []
    for run in runs:
        own = run.summary
        row = (
            run.policy,
            _seconds(own.mean_first_s),
            _change(own.mean_first_s, base.mean_first_s if base else None),
            _seconds(own.mean_urgent_first_s),
            _change(own.mean_urgent_first_s, base.mean_urgent_first_s if base else None),
            _percent(own.met_attainable),
            *(_percent(own.met[qos]) for qos in QosClass),
            _percent(own.met_urgent),
            _percent(own.met_of_all),
            _seconds(own.p99_realtime_first_s),
            _seconds(own.longest_first_s),
            _seconds(own.longest_kept_first_s),
            str(own.relegated),
            str(own.refused),
            str(own.preempted),
            "-" if own.fairness is None else f"{own.fairness:.3f}",
            f"{own.throughput_per_s:.2f}",
        )
        rows.append(row)
    return rows


def as_value(comparison: Comparison, runs: Sequence[Run], *, trace: str, seed: int | None) -> dict[str, Any]:
    """All that was found, with what it was found on; the same run gives the same value."""
    return {
        "trace": trace,
        "rows": len(comparison.rows),
        "seed": seed,
        "workers": comparison.workers,
        "estimates": "learnt" if comparison.learnt else "known",
        "overload": comparison.overload,
        "preempts": comparison.preempts,
        "device": {
            **{
                item.name: getattr(comparison.model, item.name)
                for item in dataclasses.fields(comparison.model)
                if item.name != "targets_first_output_s"
            },
            "targets_first_output_s": dict(comparison.model.targets_first_output_s),
        },
        "runs": [_run_value(run) for run in runs],
    }


def _run_value(run: Run) -> dict[str, Any]:
    summary = {item.name: getattr(run.summary, item.name) for item in dataclasses.fields(run.summary)}
    return {
        "policy": run.policy,
        # JSON knows no infinity.
        "load": None if math.isinf(run.load) else round(run.load, 6),
        "estimate_error": run.estimate_error,
        **{name: _plain(value) for name, value in summary.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return {name: _plain(item) for name, item in value.items()} if hasattr(value, "items") else value


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004 - three digits are enough


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _change(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{100 * (value / base - 1):+.1f}%"
