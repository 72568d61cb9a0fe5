"""How long readers waited for what a fault had interrupted, by kind of fault, from the streams alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from benchmarks.chaos_plan import FaultKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chaos_check import Entry, Record
    from benchmarks.chaos_faults import Fault

#: A fault may be noted a little after a worker's last event before it, or before it.
_SLACK_MS: Final = 100
#: How long a fault of the server or its connections is felt after it is over: workers reconnect.
_FELT_MS: Final = 2000
_AFTER_WORKER: Final = (FaultKind.WORKER_KILL, FaultKind.FREEZE, FaultKind.DRAIN)
#: A job that said nothing for so many steps was held up by something else already.
_SPEAKING_STEPS: Final = 5
_SLOW_MS: Final = 1000
RESTART: Final = "the server's return"
OTHER: Final = "a lease lost without a fault of its worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch in which the readers of a job heard nothing, because of a fault."""

    cause: str
    job: str
    begin_ms: int
    end_ms: int
    worker: str = ""
    #: Whether more than this fault lies behind it: the server or its connections were hit as well, which holds up
    #: any recovery, or the job had been silent before its worker was hit.
    disturbed: bool = False

    @property
    def ms(self) -> int:
        """Its length."""
        return self.end_ms - self.begin_ms


class GapFinder:
    """Finds the gaps of one record after another."""

    def __init__(self, faults: Sequence[Fault], step_ms: float) -> None:
        self._step_ms = step_ms
        self._restarts = [fault for fault in faults if fault.kind is FaultKind.SERVER]
        self._everywhere = self._restarts + [
            fault for fault in faults if fault.kind is FaultKind.CONNECTIONS and fault.answer != "pubsub"
        ]
        self._of_worker: dict[str, list[Fault]] = defaultdict(list)
        for fault in faults:
            self._of_worker[fault.worker].append(fault)
        #: Where and when poison jobs ran: they take their engine with them again and again.
        self._poison: list[tuple[str, int, int]] = []
        #: Jobs with a long gap, whole.
        self.slow: dict[str, Record] = {}
        self._cancels = {fault.job: fault for fault in faults if fault.kind is FaultKind.CANCEL}
        self.gaps: list[Gap] = []

    def look(self, record: Record, *, poison: bool) -> None:
        """Add the gaps of a job."""
        worker = ""
        known = len(self.gaps)
        if poison:
            self._note_poison(record)
            return
        for before, after in zip(record.entries, record.entries[1:], strict=False):
            worker = str(before.data.get("worker") or worker)
            if before.attempt and after.attempt > before.attempt:
                self._attempt_gap(record.id, worker, before, after)
            elif before.attempt:
                self._server_gap(record.id, before, after)
        self._engine_gaps(record)
        self._cancel_gap(record)
        if any(gap.ms >= _SLOW_MS for gap in self.gaps[known:]):
            self.slow[record.id] = record

    def found(self) -> list[Gap]:
        """All gaps; those of engines that poison jobs killed as well are told apart only now."""
        return [
            replace(gap, cause=FaultKind.POISON.value) if self._poisoned(gap) else gap for gap in self.gaps
        ]

    def _poisoned(self, gap: Gap) -> bool:
        return gap.cause == FaultKind.ENGINE_KILL and any(
            worker == gap.worker and begin_ms <= gap.end_ms and end_ms >= gap.begin_ms
            for worker, begin_ms, end_ms in self._poison
        )

    def _note_poison(self, record: Record) -> None:
        worker, begin_ms = "", 0
        for entry in record.entries:
            if "worker" in entry.data:
                if worker:
                    self._poison.append((worker, begin_ms, entry.at_ms))
                worker, begin_ms = str(entry.data["worker"]), entry.at_ms
        self._poison.append((worker, begin_ms, record.entries[-1].at_ms))

    def _add(self, cause: str, job: str, span_ms: tuple[int, int], worker: str, *, odd: bool = False) -> None:
        begin_ms, end_ms = span_ms
        hit = odd or any(
            fault.at_ms <= end_ms and fault.until_ms + _FELT_MS >= begin_ms for fault in self._everywhere
        )
        self.gaps.append(
            Gap(cause=cause, job=job, begin_ms=begin_ms, end_ms=end_ms, worker=worker, disturbed=hit)
        )

    def _attempt_gap(self, job: str, worker: str, before: Entry, after: Entry) -> None:
        """An attempt ended: by a shutdown if it says so, else by the latest fault of its worker."""
        span_ms = (before.at_ms, after.at_ms)
        if before.kind == "preempted":
            self._add(FaultKind.DRAIN.value, job, span_ms, worker)
            return
        cause, silent = OTHER, False
        for fault in self._of_worker[worker]:
            near = fault.at_ms <= after.at_ms and fault.until_ms >= before.at_ms - _SLACK_MS
            if fault.kind in _AFTER_WORKER and near:
                cause, silent = fault.kind.value, fault.at_ms - before.at_ms > _SPEAKING_STEPS * self._step_ms
        self._add(cause, job, span_ms, worker, odd=silent)

    def _server_gap(self, job: str, before: Entry, after: Entry) -> None:
        """From the server's return to the next event of an attempt that outlived the restart."""
        for fault in self._restarts:
            if before.at_ms <= fault.until_ms <= after.at_ms:
                self.gaps.append(Gap(cause=RESTART, job=job, begin_ms=fault.until_ms, end_ms=after.at_ms))

    def _engine_gaps(self, record: Record) -> None:
        """From the last event before an engine's death to the first output behind it."""
        worker, last_ms = "", 0
        waiting: tuple[str, int, int] | None = None
        for entry in record.entries:
            worker = str(entry.data.get("worker") or worker)
            if entry.kind == "resumed" and "reason" in entry.data:
                # A second death before any output: the gap goes on, and its cause isn't one kill.
                cause = self._killed_by(worker, last_ms, entry.at_ms) if not waiting else FaultKind.POISON
                waiting = (cause.value, waiting[1] if waiting else last_ms, entry.attempt)
            elif waiting:
                if entry.attempt == waiting[2]:
                    self._add(waiting[0], record.id, (waiting[1], entry.at_ms), worker)
                waiting = None
            last_ms = entry.at_ms

    def _killed_by(self, worker: str, last_ms: int, resumed_ms: int) -> FaultKind:
        for fault in self._of_worker[worker]:
            if fault.kind is FaultKind.ENGINE_KILL and last_ms - _SLACK_MS <= fault.at_ms <= resumed_ms:
                return fault.kind
        return FaultKind.POISON

    def _cancel_gap(self, record: Record) -> None:
        """From the cancel to the end of a job that was stepping: one that waits for a recovery is in no step."""
        fault = self._cancels.get(record.id)
        if fault is None or fault.answer != "cancelling" or record.state != "cancelled":
            return
        before = [entry for entry in record.entries if entry.at_ms <= fault.at_ms]
        after = [entry for entry in record.entries if entry.at_ms > fault.at_ms]
        stepping = before[-1].kind == "delta" and fault.at_ms - before[-1].at_ms <= 2 * self._step_ms
        if stepping and not any(entry.kind == "resumed" for entry in after):
            self._add(fault.kind.value, record.id, (fault.at_ms, record.entries[-1].at_ms), "")
