"""What a worker's report tells of its device's memory: reserved by whom, and what the processes say they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ccs_workers.admission.records import EngineHolding
    from ccs_workers.executor.handle import EngineHandle
    from ccs_workers.executor.pool import EnginePool

__all__ = ["memory_report"]

#: Jobs that are named, those with most memory first; the rest is in the sum.
_MOST_JOBS: Final = 8


def memory_report(engines: EnginePool) -> dict[str, object]:
    """Bytes: the budget, what is free of it, and of each engine what it holds and what it is measured to use."""
    held = engines.memory.holdings()
    handles = {handle.spec.alias: handle for handle in engines.handles()}
    return {
        "budget": held.budget_bytes,
        "free": held.free_bytes,
        "engines": [_engine(engine, handles.get(engine.alias)) for engine in held.engines],
    }


def _engine(holding: EngineHolding, handle: EngineHandle | None) -> dict[str, object]:
    use, info = (handle.memory, handle.info) if handle is not None else (None, None)
    largest = sorted(holding.jobs.items(), key=lambda job: -job[1])[:_MOST_JOBS]
    return {
        "alias": holding.alias,
        "fixed": holding.fixed_bytes,
        "pool": holding.pool_bytes,
        "jobs": len(holding.jobs),
        "jobs_bytes": holding.jobs_bytes,
        "largest": dict(largest),
        "need": list(info.need) if info else None,
        "weights": info.weights_bytes if info else None,
        "used": use.used_bytes if use else None,
        "peak": holding.peak_bytes,
        "held_at_peak": holding.held_bytes,
        "allocated": use.allocated_bytes if use else None,
        "reserved": use.reserved_bytes if use else None,
    }
