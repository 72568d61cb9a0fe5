"""The estimator learns linear service times from noisy, odd and few samples, and adds up in any order."""

from __future__ import annotations

import csv
import math
import random
import statistics
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from ccs_broker.estimate import HALF_LIFE, MOST_OFF, STATISTICS_LEN, Coefficients, Statistics, past_share
from ccs_broker.simulate.device import Device
from ccs_broker.simulate.model import REFERENCE

TRUE = Coefficients((50_000.0, 12.0, 9_000.0, 40_000.0, 0.3))
TRACE = Path(__file__).parents[2] / "benchmarks" / "traces" / "mixed_seed7.csv"


def sizes_of(rng: random.Random) -> tuple[float, ...]:
    return (rng.randrange(20, 9000), rng.randrange(1, 400), rng.randrange(0, 6), rng.randrange(0, 2_000_000))


def learn(samples, coefficients=None):
    """Add samples one after another, each with what was expected by then."""
    seen = Statistics()
    for place, (sizes, time_us) in enumerate(samples):
        seen = seen.add(sizes, time_us, coefficients.predict(sizes) if coefficients else None)
        if place % 10 == 9:
            coefficients = seen.solve()
    return seen


def median_error(coefficients, samples):
    return statistics.median(abs(coefficients.predict(sizes) - time) / time for sizes, time in samples)


def samples_of(rng, count, noise=0.0, truth=TRUE):
    sizes = [sizes_of(rng) for _ in range(count)]
    return [(s, truth.predict(s) * math.exp(rng.gauss(0, noise))) for s in sizes]


def test_exact_times_are_learnt_exactly():
    found = learn(samples_of(random.Random(1), 200)).solve()
    for value, true in zip(found.values, TRUE.values, strict=True):
        assert value == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_scattered_times_are_met_in_their_middle(noise):
    rng = random.Random(2)
    found = learn(samples_of(rng, 1000, noise)).solve()
    exact = samples_of(rng, 200)
    ratios = [found.predict(sizes) / time for sizes, time in exact]
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.15)
    assert median_error(found, exact) < 0.15


def test_a_few_stalls_spoil_nothing():
    rng = random.Random(3)
    samples = [(s, t * (300 if rng.random() < 0.03 else 1)) for s, t in samples_of(rng, 600, 0.1)]
    assert median_error(learn(samples).solve(), samples_of(rng, 200)) < 0.2


@pytest.mark.parametrize("change", [0.1, 0.5, 2.0, 20.0])
def test_a_device_that_changed_is_followed(change):
    """The rounds of a learner: what it saw since the last one tells how far the past is still to be believed."""
    rng = random.Random(4)
    changed = Coefficients(tuple(change * value for value in TRUE.values))
    seen = learn(samples_of(rng, 2000, 0.1))
    for _ in range(8):
        known, fresh, ratios = seen.solve(), Statistics(), []
        for sizes, time_us in samples_of(rng, 50, 0.1, changed):
            fresh = fresh.add(sizes, time_us, known.predict(sizes))
            ratios.append(time_us / known.predict(sizes))
        seen = seen.decay(past_share(ratios)).merge(fresh)
    assert median_error(seen.solve(), samples_of(rng, 200, truth=changed)) < 0.15


def test_the_past_fades_by_halves_and_at_once_where_it_proves_wrong():
    assert past_share([]) == 1.0
    assert past_share([0.9, 1.4] * (HALF_LIFE // 2)) == pytest.approx(0.5)
    assert past_share([1.3] * 10) > 0.95
    assert past_share([9.0] * 3) > 0.98
    assert past_share([9.0] * 30) < 0.1
    assert past_share([0.2] * 30) < 0.1


def test_one_sample_and_one_size_are_enough_for_that_size():
    sizes = (400.0, 32.0, 0.0, 0.0)
    one = Statistics().add(sizes, 250_000)
    assert one.solve().predict(sizes) == pytest.approx(250_000, rel=0.01)
    many = one
    for time_us in (240_000, 260_000) * 50:
        many = many.add(sizes, time_us, 250_000)
    found = many.solve()
    assert found.predict(sizes) == pytest.approx(250_000, rel=0.01)
    assert min(found.values) >= 0
    # What the samples leave open isn't guessed wildly: twice the size takes at most twice the time.
    assert 250_000 * 0.98 <= found.predict((800.0, 64.0, 0.0, 0.0)) <= 500_000


def test_no_coefficient_is_negative_where_plain_least_squares_would_make_it():
    rng = random.Random(5)
    samples = [
        ((chars, 10.0, 0.0, 0.0), 1e6 - 90.0 * chars)
        for chars in (rng.randrange(1, 10_000) for _ in range(99))
    ]
    found = learn(samples).solve()
    assert min(found.values) >= 0
    assert found.values[1] == 0


def test_the_fit_is_the_best_of_all_that_are_not_negative():
    rng = random.Random(6)
    for _ in range(20):
        samples = [(sizes_of(rng), rng.uniform(1e3, 1e7)) for _ in range(12)]
        seen = Statistics()
        for sizes, time_us in samples:
            seen = seen.add(sizes, time_us)

        def loss(values, samples=samples):
            c = Coefficients(values)
            return sum((c.predict(s) - t) ** 2 / t**2 for s, t in samples)

        best = seen.solve().values
        for place in range(5):
            for factor in (0.9, 1.1):
                other = list(best)
                other[place] = best[place] * factor + (0 if best[place] else 1e-3 * 1e4 / (place * 1e3 + 1))
                assert loss(tuple(other)) >= loss(best) * (1 - 1e-3)


def test_merging_in_any_order_gives_the_same():
    rng = random.Random(7)
    parts = [learn(samples_of(rng, 20, 0.2)) for _ in range(4)]
    merged = []
    for order in permutations(parts):
        total = Statistics()
        for part in order:
            total = total.merge(part)
        merged.append(total)
    for one, two in pairwise(merged):
        assert one.sums == pytest.approx(two.sums, rel=1e-12)
        assert one.solve().values == pytest.approx(two.solve().values, rel=1e-6)
    assert merged[0].count == 80


def test_what_faded_counts_less():
    old, new = Coefficients((1e6, 0, 0, 0, 0)), Coefficients((2e6, 0, 0, 0, 0))
    sizes = (1.0, 1.0, 0.0, 0.0)
    seen = Statistics()
    for _ in range(100):
        seen = seen.add(sizes, old.values[0])
    seen = seen.decay(0.01)
    assert seen.count == pytest.approx(1.0)
    for _ in range(100):
        seen = seen.add(sizes, new.values[0])
    assert seen.solve().predict(sizes) == pytest.approx(2e6, rel=0.05)
    assert seen.decay(0.0).solve() is None
    with pytest.raises(ValueError, match="factor"):
        seen.decay(1.5)


def test_nothing_seen_is_nothing_known():
    assert Statistics().solve() is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e16])
def test_what_is_no_size_or_time_is_refused(bad):
    seen = Statistics()
    with pytest.raises(ValueError, match="lie from 0"):
        seen.add((1, 1, 1, 1), bad)
    with pytest.raises(ValueError, match="lie from 0"):
        seen.add((1, bad, 1, 1), 1000)
    with pytest.raises(ValueError, match="lie from 0"):
        seen.add((1, 1, 1, 1), 1000, bad)
    with pytest.raises(ValueError, match="4 sizes"):
        seen.add((1, 1, 1), 1000)
    with pytest.raises(ValueError, match="finite"):
        Statistics((math.nan,) * STATISTICS_LEN)
    with pytest.raises(ValueError, match="finite"):
        Coefficients((1.0, math.inf, 0.0, 0.0, 0.0))


def test_huge_and_tiny_values_keep_their_sense():
    seen = Statistics()
    for place in range(1, 60):
        seen = seen.add((1e15 / place, 1e9, 0, 1e15), 1e15 / place)
        seen = seen.add((0, 0, 0, 0), 0)
    found = seen.solve()
    assert all(math.isfinite(value) for value in found.values)
    assert found.predict((1e15 / 30, 1e9, 0, 1e15)) == pytest.approx(1e15 / 30, rel=0.5)


def test_a_sample_counts_as_no_further_off_than_the_most():
    sizes = (1.0, 1.0, 0.0, 0.0)
    far = Statistics().add(sizes, 1e9, 1e5)
    assert far.sums == Statistics().add(sizes, 1e5 * MOST_OFF, 1e5).sums


def test_service_times_of_the_public_trace_are_met():
    """After 200 jobs of each modality on the shared reference device, the median error of the next ones is small."""
    with TRACE.open() as file:
        rows = list(csv.DictReader(file))[:4000]
    device, known, seen = Device(REFERENCE), {}, {}
    errors = {modality: [] for modality in ("text", "vision", "audio")}
    waiting, running = list(reversed(rows)), {}
    while waiting or running:
        while waiting and len(running) < 12:
            row = waiting.pop()
            images, audio_s = int(row["images"]), float(row["audio_s"])
            tokens, answer = int(row["context_tokens"]), int(row["generated_tokens"])
            demand = REFERENCE.demand(
                images=images, audio_s=audio_s, context_tokens=tokens, new_tokens=answer
            )
            run = device.add(str(len(waiting)), demand)
            running[run.key] = (row["modality"], (tokens * 4.0, answer, images, audio_s * 32_000))
        for run in device.step().ended:
            modality, sizes = running.pop(run.key)
            time_us = run.device_s * 1e6
            past, coefficients = seen.get(modality, Statistics()), known.get(modality)
            expected = coefficients.predict(sizes) if coefficients else None
            if past.count >= 200:
                errors[modality].append(abs(expected - time_us) / time_us)
            seen[modality] = past.add(sizes, time_us, expected)
            if seen[modality].count % 10 == 0:
                known[modality] = seen[modality].solve()
    for modality, found in errors.items():
        assert len(found) > 50
        assert statistics.median(found) < 0.15, (modality, statistics.median(found))
