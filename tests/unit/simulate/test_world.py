"""The world against times computed by hand, on a desk in plain arrival order."""

from __future__ import annotations

import pytest

from ccs_broker.contract.words import Modality, QosClass
from ccs_broker.simulate.arrival_order import ArrivalOrder, capacity
from ccs_broker.simulate.model import REFERENCE, DeviceModel
from ccs_broker.simulate.records import Blocked, Taken, jobs_of
from ccs_broker.simulate.trace import Row
from ccs_broker.simulate.worker import make_worker
from ccs_broker.simulate.world import World

TEXT = (Modality.TEXT,)


def row(at=0.0, context=0, new=1, modality=Modality.TEXT, qos=QosClass.STANDARD):
    return Row(
        arrival_s=at,
        modality=modality,
        qos=qos,
        tenant="t",
        images=0,
        audio_s=0.0,
        context_tokens=context,
        generated_tokens=new,
    )


def run(rows, model=REFERENCE, *, workers=1, desk=None, shares=None, preempts=False):
    jobs = jobs_of(rows, model)
    modalities = tuple(dict.fromkeys(one.modality for one in rows))
    fleet = [make_worker(f"w{n}", model, modalities, shares) for n in range(workers)]
    world = World(jobs, fleet, desk or ArrivalOrder(), preempts=preempts)
    world.run()
    return jobs, world


def test_a_job_that_comes_within_an_iteration_joins_the_next():
    jobs, world = run([row(0.0, context=1000), row(0.03, context=500)])
    first = 0.010 + 1000 * 6e-5
    assert [job.first_s for job in jobs] == pytest.approx([first, first + 0.010 + 500 * 6e-5])
    assert world.busy_s == pytest.approx(jobs[1].end_s)


def test_a_job_that_comes_while_others_decode_joins_at_the_next_token():
    """Ten tokens in 0.01008 s each; the second arrives in the fourth of these iterations."""
    jobs, _ = run([row(0.0, context=100, new=11), row(0.016 + 3.5 * 0.01008, context=100)])
    joined = 0.016 + 4 * 0.01008
    assert jobs[1].first_s == pytest.approx(joined + 0.010 + 100 * 6e-5 + 8e-5)
    assert jobs[0].end_s == pytest.approx(joined + 0.016 + 8e-5 + 5 * 0.01008)


def test_a_device_that_has_nothing_to_do_waits_for_the_next_arrival():
    jobs, world = run([row(0.0, context=100), row(5.0, context=100)])
    assert [job.wait_s for job in jobs] == pytest.approx([0.016, 0.016])
    assert world.busy_s == pytest.approx(0.032)


def test_the_head_of_the_line_holds_up_all_behind_it_until_it_fits():
    model = DeviceModel(kv_tokens=1000)
    jobs, _ = run([row(context=600, new=1), row(context=500, new=1), row(context=10, new=1)], model)
    ends = [0.010 + 600 * 6e-5, 0.020 + 1110 * 6e-5, 0.020 + 1110 * 6e-5]
    assert [job.first_s for job in jobs] == pytest.approx(ends)


def test_slots_bound_how_many_run_at_once():
    model = DeviceModel(max_sequences=1)
    jobs, _ = run([row(context=100, new=2), row(context=100)], model)
    assert [job.first_s for job in jobs] == pytest.approx([0.016, 0.016 + 0.01008 + 0.016])


def test_a_job_that_fits_no_worker_is_refused_and_missed():
    jobs, _ = run([row(context=100_000, new=1), row(context=100)])
    assert [(job.refused, job.met, job.wait_s) for job in jobs] == [(True, False, None), (False, True, 0.016)]


def test_workers_take_turns_in_the_order_in_which_they_began_to_listen():
    jobs, _ = run([row(0.0, context=1000), row(0.001, context=1000)], workers=2)
    assert [job.wait_s for job in jobs] == pytest.approx([0.07, 0.07])


class PerModality:
    """A line per modality."""

    def __init__(self):
        self.lines = {}

    def publish(self, job, now_s):
        self.lines.setdefault(job.row.modality, ArrivalOrder()).publish(job, now_s)
        return True

    def claim(self, offer, now_s):
        return self.lines[offer.woken_by].claim(offer, now_s)

    def rank(self, job):
        return 2

    def first_output(self, job, now_s): ...
    def finish(self, job, run, now_s): ...
    def tick(self, now_s): ...


def test_a_divided_worker_keeps_each_modality_to_its_share():
    shares = {Modality.TEXT: 0.5, Modality.VISION: 0.25}
    model = DeviceModel(max_sequences=8, kv_tokens=1000)
    worker = make_worker("w", model, (Modality.TEXT, Modality.VISION), shares)
    assert [(pool.slots, pool.kv_tokens, pool.modalities) for pool in worker.pools] == [
        (4, 500, (Modality.TEXT,)),
        (2, 250, (Modality.VISION,)),
    ]
    rows = [row(context=400), row(context=400), row(context=200, modality=Modality.VISION)]
    rows.append(row(context=300, modality=Modality.VISION))
    jobs, _ = run(rows, model, desk=PerModality(), shares=shares)
    together = 0.010 + 600 * 6e-5
    assert [job.first_s for job in jobs[:3]] == pytest.approx([together, together + 0.034, together])
    assert jobs[3].refused


class Ranked(ArrivalOrder):
    """Realtime first, and says what doesn't fit."""

    def __init__(self):
        super().__init__()
        self.released = []

    def rank(self, job):
        return list(QosClass).index(job.row.qos)

    def claim(self, offer, now_s):
        for job in sorted(self._jobs, key=self.rank):
            if job.demand.kv_tokens <= offer.free_kv_tokens:
                self._jobs.remove(job)
                return Taken(id=job.id, score=self.rank(job), attempt=job.attempt + 1)
            return Blocked(id=job.id, rank=self.rank(job), need_kv_tokens=job.demand.kv_tokens)
        return None

    def release(self, job, now_s):
        self.released.append((now_s, job.id, job.generated))
        super().release(job, now_s)


def test_a_clearly_more_urgent_job_takes_the_place_of_the_least_urgent_once_it_has_settled():
    model = DeviceModel(kv_tokens=1000)
    desk = Ranked()
    rows = [row(0.0, context=100, new=400, qos=QosClass.BATCH), row(0.0, context=100, new=300)]
    rows.append(row(1.0, context=500, new=1, qos=QosClass.REALTIME))
    jobs, _ = run(rows, model, desk=desk, preempts=True)
    assert [job.preempted for job in jobs] == [1, 0, 0]
    ((at, key, generated),) = desk.released
    # Looked at 1.0 s, when nothing had run for two seconds; then as the pool listens again, a second later each time.
    assert (key, at) == (jobs[0].id, pytest.approx(2.0, abs=0.03))
    assert jobs[2].first_s == pytest.approx(at + 0.010 + 500 * 6e-5 + 8e-5)
    assert jobs[0].generated == 400
    assert 0 < generated < 400
    assert jobs[0].attempt == 2


def test_without_preemption_it_waits_for_room():
    model = DeviceModel(kv_tokens=1000)
    rows = [row(0.0, context=100, new=400, qos=QosClass.BATCH), row(0.0, context=100, new=300)]
    rows.append(row(1.0, context=500, new=1, qos=QosClass.REALTIME))
    jobs, _ = run(rows, model, desk=Ranked())
    assert jobs[2].first_s > jobs[1].end_s
    assert sum(job.preempted for job in jobs) == 0


def test_capacity_is_jobs_by_the_time_that_first_come_first_served_takes():
    rows = [row(float(n), context=1000, new=1) for n in range(8)]
    # 8,000 tokens: three full iterations and one with 1,856.
    assert capacity(rows, REFERENCE) == pytest.approx(8 / (4 * 0.010 + 8000 * 6e-5))
    assert capacity(rows, REFERENCE, workers=2) == pytest.approx(8 / (2 * 0.010 + 4000 * 6e-5))


def test_progress_ends_with_all_jobs():
    seen = []
    jobs = jobs_of([row(float(n)) for n in range(120)], REFERENCE)
    World(jobs, [make_worker("w", REFERENCE, TEXT, None)], ArrivalOrder(), lambda *at: seen.append(at)).run()
    assert seen == [(50, 120), (100, 120), (120, 120)]


def test_an_idle_year_is_no_work():
    """Nothing is swept while nothing waits or runs."""

    class Counting(ArrivalOrder):
        ticks = 0

        def tick(self, now_s):
            self.ticks += 1
            return super().tick(now_s)

    desk = Counting()
    year_s = 365 * 86400.0
    jobs, world = run(
        [row(0.0, context=100), row(year_s, context=100), row(2 * year_s, context=100)], desk=desk
    )
    assert all(job.first_s is not None for job in jobs)
    assert world.now_s > 2 * year_s
    assert desk.ticks < 100


def test_a_job_whose_part_of_the_device_has_no_slot_is_refused_and_holds_up_nobody():
    shares = {Modality.TEXT: 0.99, Modality.VISION: 0.01}
    jobs, _ = run([row(0.0), row(0.0, modality=Modality.VISION)], shares=shares)
    assert [job.refused for job in jobs] == [False, True]
