"""An independent model of the waiting room: what the ledger's scripts must do, in plain Python without Redis."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ccs_broker.contract import Overload, QosClass
from ccs_broker.policy import BALANCED
from ccs_broker.priority import Work, late_after_us, relegated_score, score, urgency

LEAST_CREDIT_US, MOST_CREDIT_US = -5_000_000, 1_000_000
CLASSES = tuple(QosClass)


@dataclass(slots=True)
class Guest:
    """One job."""

    id: str
    queue: str
    model: str
    qos: QosClass
    deadline_s: float | None
    overload: Overload
    tenant: str
    work: Work
    tag: int
    submitted_ms: int
    expire_ms: int
    late_ms: int
    relegated: bool
    state: str = "waiting"
    attempt: int = 0
    started: bool = False
    told: int = 0

    @property
    def urgent(self):
        return urgency(self.qos, self.deadline_s, overload=self.overload)

    @property
    def score(self) -> int:
        return (relegated_score if self.relegated else score)(self.urgent, self.work, self.tag)

    @property
    def aged(self) -> bool:
        return self.relegated or self.qos is QosClass.BATCH


@dataclass(slots=True)
class WaitingRoom:
    """All jobs, the tenants' accounts and the floor's credit, under the balanced policy."""

    weights: dict[str, float] = field(default_factory=dict)
    guests: dict[str, Guest] = field(default_factory=dict)
    now_ms: int = 0
    virtual: int = 0
    next_tag: dict[tuple[int, str], int] = field(default_factory=dict)
    credit: int = 0

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)

    def waiting(self) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.state == "waiting"]

    def running(self) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.state == "running"]

    def publish(self, guest: Guest) -> None:
        account = (CLASSES.index(guest.qos), guest.tenant)
        guest.tag = max(self.virtual, self.next_tag.get(account, 0))
        self.next_tag[account] = math.floor(guest.tag + guest.work.cost_us / self.weight(guest.tenant) + 0.5)
        after_ms = late_after_us(guest.urgent, guest.work) // 1000
        guest.late_ms = self.now_ms + after_ms
        guest.relegated = guest.urgent.relegates and after_ms <= 0
        self.guests[guest.id] = guest

    def leave(self, guest: Guest, state: str) -> None:
        """It waits no longer."""
        guest.state = state
        if not self.waiting():
            self.next_tag.clear()

    def pass_time(self, to_ms: int) -> None:
        self.now_ms = to_ms

    def relegate(self) -> None:
        """What any claim or sweep does first."""
        for guest in [*self.waiting(), *self.running()]:
            if guest.urgent.relegates and not guest.relegated and guest.late_ms <= self.now_ms:
                guest.relegated = True
                guest.told += 1

    def choose(self, queues: tuple[str, ...], models: tuple[str, ...]) -> tuple[Guest | None, bool]:
        """The job that a worker without a bound of memory gets, and whether in the floor's turn."""
        fit = [g for g in self.waiting() if g.queue in queues and g.model in ("", *models)]
        if not fit:
            return None, False
        best = min(fit, key=lambda guest: (guest.score, guest.id))
        aged = sorted((g for g in fit if g.aged), key=lambda guest: (guest.submitted_ms, guest.id))
        if aged and self.credit > 0 and self.credit >= min(aged[0].work.cost_us, MOST_CREDIT_US):
            return aged[0], True
        return best, False

    def claim(self, guest: Guest, queues: tuple[str, ...]) -> None:
        some_aged = any(g.aged and g.queue in queues for g in self.waiting())
        tenants = {g.tenant for g in self.waiting()}
        weights = sum(self.weight(tenant) for tenant in tenants)
        self.leave(guest, "running")
        guest.attempt += 1
        if not guest.started:
            guest.started = True
            self.virtual = math.floor(self.virtual + guest.work.cost_us / weights + 0.5)
        if some_aged:
            share = BALANCED.floor / (1 - BALANCED.floor)
            paid = -guest.work.cost_us if guest.aged else share * guest.work.cost_us
            credit = max(LEAST_CREDIT_US, min(MOST_CREDIT_US, self.credit + paid))
            self.credit = round(credit)

    def finish(self, guest: Guest, actual_us: int) -> None:
        guest.state = "done"
        account = (CLASSES.index(guest.qos), guest.tenant)
        if account in self.next_tag:
            more = (actual_us - guest.work.cost_us) / self.weight(guest.tenant)
            self.next_tag[account] = math.floor(self.next_tag[account] + more + 0.5)

    def sweep(self) -> None:
        self.relegate()
        for guest in self.waiting():
            if guest.expire_ms <= self.now_ms:
                self.leave(guest, "done")
        self.next_tag = {key: tag for key, tag in self.next_tag.items() if tag > self.virtual}
        if not self.waiting():
            self.next_tag.clear()

    def reprioritize(self, guest: Guest, qos: QosClass) -> None:
        guest.qos, guest.deadline_s = qos, None
        after_ms = late_after_us(guest.urgent, guest.work) // 1000
        guest.late_ms = self.now_ms + after_ms
        was = guest.relegated
        guest.relegated = guest.urgent.relegates and after_ms <= 0
        guest.told += was is not guest.relegated
