"""The gate of an engine: who may be inside with whom, who is asked to make way, and that nobody waits for ever."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ccs_workers.executor.gate import Company, Gate, Turn
from tests.helpers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Guest:
    """A job that enters in a thread of its own and stays until it is told to leave, or asked to make way."""

    def __init__(self, gate: Gate, company: Company, *, obedient: bool = True) -> None:
        self.turn: Turn | None = None
        self.asked = threading.Event()
        self.refused = threading.Event()
        self.stopped = threading.Event()
        self._leave = threading.Event()
        self._obedient = obedient
        self._gate = gate
        self._company = company
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def inside(self) -> bool:
        return self.turn is not None and not self._leave.is_set()

    def _run(self) -> None:
        entered = self._gate.enter(self._company, make_way=self._make_way, stopped=self.stopped.is_set)
        with entered as turn:
            if turn is None:
                self.refused.set()
                return
            self.turn = turn
            self._leave.wait()

    def _make_way(self) -> None:
        self.asked.set()
        if self._obedient:
            self._leave.set()

    def leave(self) -> None:
        self.stopped.set()
        self._leave.set()
        self._thread.join(5)
        assert not self._thread.is_alive()


@contextmanager
def guests(gate: Gate, *companies: Company, obedient: bool = True) -> Iterator[list[Guest]]:
    """Guests that come in this order; all leave at the end."""
    with ExitStack() as stack:
        found = []
        for company in companies:
            guest = Guest(gate, company, obedient=obedient)
            stack.callback(guest.leave)
            found.append(guest)
        yield found


def test_any_number_share() -> None:
    with guests(Gate(), Company.SHARED, Company.SHARED, Company.WATCHED) as all_of_them:
        wait_until(lambda: all(guest.inside for guest in all_of_them), 5)
        assert not any(guest.asked.is_set() for guest in all_of_them)


def test_suspects_come_one_by_one_beside_the_others() -> None:
    gate = Gate()
    with guests(gate, Company.WATCHED) as [first]:
        wait_until(lambda: first.inside, 5)
        with guests(gate, Company.WATCHED, Company.SHARED) as [second, neighbor]:
            wait_until(lambda: neighbor.inside, 5)
            assert not second.inside
            assert first.turn is not None
            first.turn.prove()
            wait_until(lambda: second.inside, 5)
            assert first.inside
            assert not first.asked.is_set()


def test_who_must_be_alone_has_the_others_step_out_and_newcomers_wait() -> None:
    gate = Gate()
    with guests(gate, Company.SHARED, Company.WATCHED) as before:
        wait_until(lambda: all(guest.inside for guest in before), 5)
        with guests(gate, Company.ALONE) as [alone]:
            wait_until(lambda: alone.inside, 5)
            assert all(guest.asked.is_set() and not guest.inside for guest in before)
            with guests(gate, Company.SHARED, Company.WATCHED) as after:
                assert not any(guest.inside for guest in after)
                assert alone.turn is not None
                alone.turn.prove()
                wait_until(lambda: all(guest.inside for guest in after), 5)
                assert alone.inside
                assert not alone.asked.is_set()


def test_of_several_that_must_be_alone_each_goes_on_only_after_the_last() -> None:
    gate = Gate()
    with guests(gate, Company.ALONE) as [first]:
        wait_until(lambda: first.inside, 5)
        with guests(gate, Company.ALONE, Company.SHARED) as [second, neighbor]:
            assert not first.asked.is_set()
            assert first.turn is not None
            first.turn.prove()
            wait_until(lambda: second.inside, 5)
            assert first.asked.is_set()
            assert not neighbor.inside
            second.leave()
            wait_until(lambda: neighbor.inside, 5)


def test_who_is_stopped_while_waiting_is_let_go_and_holds_nobody_up() -> None:
    gate = Gate()
    with guests(gate, Company.SHARED, obedient=False) as [stubborn]:
        wait_until(lambda: stubborn.inside, 5)
        with guests(gate, Company.ALONE) as [alone]:
            wait_until(stubborn.asked.is_set, 5)
            with guests(gate, Company.SHARED) as [neighbor]:
                assert not neighbor.inside
                alone.stopped.set()
                assert alone.refused.wait(5)
                wait_until(lambda: neighbor.inside, 5)
