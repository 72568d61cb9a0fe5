"""A comparison: the same trace under several policies and loads, one run after another on one private server."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import InvalidInputError
from ccs_broker.server import EmbeddedServer
from ccs_broker.simulate.arrival_order import capacity
from ccs_broker.simulate.ledger_desk import DeskSettings, LedgerDesk
from ccs_broker.simulate.metrics import Summary, summarize
from ccs_broker.simulate.model import REFERENCE, DeviceModel
from ccs_broker.simulate.records import SimJob, jobs_of
from ccs_broker.simulate.trace import scaled
from ccs_broker.simulate.worker import THIRDS, make_worker, part_of
from ccs_broker.simulate.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccs_broker.contract.words import Modality
    from ccs_broker.simulate.trace import Row

__all__ = ["POLICY_NAMES", "STATIC", "Comparison", "Run", "compare"]

_DAY_S: Final = 86_400.0
#: Not a way to score but to divide the workers: first come, first served inside each modality's share.
STATIC: Final = "static"
#: In the order of the tables: what others are measured against first, the default last.
POLICY_NAMES: Final = ("fifo", STATIC, "class", "edf", "balanced")
#: Longest time that a trace may be stretched to; the ledger's leases and reports last that long.
LONGEST_S: Final = 100 * _DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is to be run."""

    rows: Sequence[Row]
    policies: tuple[str, ...] = POLICY_NAMES
    #: Loads as shares of capacity; empty: the trace at its own pace, times ``scale``.
    loads: tuple[float, ...] = (0.9,)
    scale: float = 1.0
    workers: int = 1
    model: DeviceModel = REFERENCE
    #: Service times are known from the trace, or learnt as jobs end.
    learnt: bool = False
    overload: str = "relegate"
    #: Urgent jobs may take the places of others that run, under `balanced`.
    preempts: bool = False
    #: The modalities' shares of a worker under `static`.
    shares: Mapping[Modality, float] = field(default_factory=lambda: THIRDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy at one load, and what came of it."""

    policy: str
    #: Arrival rate as a share of capacity; infinite where everything arrives at once.
    load: float
    summary: Summary
    jobs: Sequence[SimJob]
    #: Median relative error of the learnt estimates of device time; None where they were known.
    estimate_error: float | None = None


def compare(
    comparison: Comparison, on_progress: Callable[[str, float, int, int], None] | None = None
) -> Iterator[Run]:
    """Run each policy at each load; a run is given as soon as it is done.

    ``on_progress`` hears policy, load, jobs that ended, and jobs in all.

    Raises:
        InvalidInputError: the trace has no rate that a load could be made of, would last too long, or has jobs that
            `static` gives no slot to.
        ConfigurationError: no server can be started here.
    """
    own = comparison
    _check_shares(own)
    rate = _rate(own.rows)
    if own.loads and math.isinf(rate):
        raise InvalidInputError(
            f"a load needs two different times of arrival, and the trace's requests ({len(own.rows)}) have one; "
            "give --scale 1 to run them as they are"
        )
    per_second = capacity(list(own.rows), own.model, own.workers)
    factors = [rate / (load * per_second) for load in own.loads] if own.loads else [own.scale]
    for factor in factors:
        _check_length(own.rows[-1].arrival_s * factor)
    with EmbeddedServer(unix_socket=True) as server:
        for factor in factors:
            load = rate / (factor * per_second)
            rows = scaled(own.rows, factor)
            for policy in own.policies:
                trial = _Trial(policy=policy, load=load, rows=rows)
                hear = None if on_progress is None else partial(on_progress, policy, load)
                yield _run(own, trial, server.url, hear)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """What is different in each run."""

    policy: str
    load: float
    rows: Sequence[Row]


def _run(own: Comparison, trial: _Trial, url: str, on_progress: Callable[[int, int], None] | None) -> Run:
    modalities = tuple(dict.fromkeys(row.modality for row in trial.rows))
    shares = own.shares if trial.policy == STATIC else None
    fleet = [make_worker(f"sim-{number}", own.model, modalities, shares) for number in range(own.workers)]
    jobs = jobs_of(list(trial.rows), own.model)
    settings = DeskSettings(
        policy="fifo" if trial.policy == STATIC else trial.policy,
        overload=own.overload,
        learnt=own.learnt,
        strict=trial.policy == "fifo",
    )
    with closing(LedgerDesk(url, jobs, settings)) as desk:
        desk.open([pool.name for worker in fleet for pool in worker.pools])
        world = World(jobs, fleet, desk, on_progress, preempts=own.preempts and trial.policy == "balanced")
        world.run()
        desk.close_books()
        error = desk.estimate_error()
    summary = summarize(jobs, busy_s=world.busy_s, workers=own.workers)
    return Run(policy=trial.policy, load=trial.load, summary=summary, jobs=jobs, estimate_error=error)


def _rate(rows: Sequence[Row]) -> float:
    """Arrivals a second, counted from the trace's beginning; infinite if all arrive at one time."""
    return len(rows) / rows[-1].arrival_s if rows[0].arrival_s != rows[-1].arrival_s else math.inf


def _check_length(last_s: float) -> None:
    if not last_s <= LONGEST_S:
        raise InvalidInputError(
            f"the trace's last request would arrive after {last_s / _DAY_S:.3g} days, {LONGEST_S / _DAY_S:g} are the "
            "most; see --load and --scale (arrival_s counts from the trace's beginning)"
        )


def _check_shares(own: Comparison) -> None:
    """Jobs of a modality without a slot could only be refused, all of them."""
    if STATIC not in own.policies:
        return
    modalities = dict.fromkeys(row.modality for row in own.rows)
    without = [word for word in modalities if not part_of(own.shares.get(word, 0.0), own.model.max_sequences)]
    if without:
        raise InvalidInputError(
            f"static gives no slot to the trace's {' and '.join(without)} jobs: name a larger share for each with "
            "--share, or leave static out of --policy"
        )
