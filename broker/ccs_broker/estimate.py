"""The estimator: how long jobs of a size take, learnt from those that ended; pure, and a few dozen numbers large.

A job's device time is taken to be linear in its sizes, with coefficients that can't be negative:

    time = c0 + c1 * prompt_chars + c2 * new_tokens + c3 * images + c4 * media_bytes

What was seen is kept as the sums that least squares need, so that workers add theirs up in any order, and the past
fades by a factor. A sample that took ``y`` where ``p`` was expected counts with weight p^-1.5 * y^-0.5: errors then
count in proportion to the expected time rather than in seconds, and for times that scatter by a factor up as much as
down the fit goes through their middle, where 1 / y^2 would go far below it. A sample far off counts as if it were
``MOST_OFF`` times off, so that one stall of the device can't spoil what a hundred jobs taught; where the device has
really changed, the past is dropped (:func:`past_share`), and the expectation follows within a few rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FEATURES", "HALF_LIFE", "MOST_OFF", "STATISTICS_LEN", "Coefficients", "Statistics", "past_share"]

#: What a job's time depends on; the first is 1 for every job, the others are its sizes, in this order.
FEATURES: Final = ("one", "prompt_chars", "new_tokens", "images", "media_bytes")
#: A sample beyond this factor of what was expected counts as if it lay there, once there is something to expect.
MOST_OFF: Final = 4.0
#: Samples after which what was seen before counts half.
HALF_LIFE: Final = 200

#: Where this many samples lie beyond this factor of what was expected in their middle, the device or the model isn't
#: what it was, and the past counts this much.
_SURE: Final = 10
_CHANGED: Final = 1.5
_WRONG_PAST: Final = 0.01
_SIZES: Final = len(FEATURES) - 1
#: Pairs of features, the upper triangle row by row.
_PAIRS: Final = tuple((i, j) for i in range(len(FEATURES)) for j in range(i, len(FEATURES)))
#: Numbers that statistics consist of: a count, the pairs' sums and the features' sums.
STATISTICS_LEN: Final = 1 + len(_PAIRS) + len(FEATURES)
#: Pull towards 0, as a share of what each feature weighs: settles what the samples leave open, and no more.
_RIDGE: Final = 1e-4
#: Shortest time that counts; a job can't be done faster than a clock tells.
_SHORTEST_US: Final = 100.0
#: No sum of samples reaches 1e300 with sizes and times up to here.
_MOST: Final = 1e15
#: A solution this little below 0 is rounding.
_ROUNDING: Final = 1e-9
#: A pivot below this, of a matrix with 1 on its diagonal, leaves nothing to divide by.
_FLAT: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Microseconds per unit of each feature, none negative."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(FEATURES) or not all(0 <= value < math.inf for value in self.values):
            raise ValueError(f"coefficients are {len(FEATURES)} finite numbers, none below 0")

    def predict(self, sizes: Sequence[float]) -> float:
        """Microseconds that a job of these sizes is expected to take.

        Args:
            sizes: prompt characters, new tokens, images, media bytes.
        """
        return sum(c * x for c, x in zip(self.values, _features(sizes), strict=True))


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the samples of one kind of job and one time (first output, or all) come to; adding up is merging."""

    #: The count, the pairs' sums, the features' sums: ``STATISTICS_LEN`` numbers.
    sums: tuple[float, ...] = (0.0,) * STATISTICS_LEN

    def __post_init__(self) -> None:
        if len(self.sums) != STATISTICS_LEN or not all(0 <= value < math.inf for value in self.sums):
            raise ValueError(f"statistics are {STATISTICS_LEN} finite numbers, none below 0")

    @property
    def count(self) -> float:
        """Samples, those that faded counted in part."""
        return self.sums[0]

    def add(self, sizes: Sequence[float], time_us: float, expected_us: float | None = None) -> Statistics:
        """These statistics and one sample more.

        Args:
            sizes: prompt characters, new tokens, images, media bytes.
            time_us: microseconds the job took.
            expected_us: what was predicted for it by coefficients that had been learnt; None: nothing was.

        Raises:
            ValueError: a value isn't a number from 0 to 1e15.
        """
        features = _features(sizes)
        time_us = max(_SHORTEST_US, _checked(time_us))
        expected_us = time_us if expected_us is None else max(_SHORTEST_US, _checked(expected_us))
        time_us = min(max(time_us, expected_us / MOST_OFF), expected_us * MOST_OFF)
        weight = expected_us**-1.5 * time_us**-0.5
        sample = (
            1.0,
            *(weight * features[i] * features[j] for i, j in _PAIRS),
            *(weight * time_us * feature for feature in features),
        )
        return Statistics(tuple(old + new for old, new in zip(self.sums, sample, strict=True)))

    def merge(self, other: Statistics) -> Statistics:
        """What both have seen; the order doesn't matter."""
        return Statistics(tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)))

    def decay(self, factor: float) -> Statistics:
        """Let the past count less: every sample as if it were ``factor`` of one, from 0 to 1."""
        if not 0 <= factor <= 1:
            raise ValueError("a decay's factor lies from 0 to 1")
        return Statistics(tuple(value * factor for value in self.sums))

    def solve(self) -> Coefficients | None:
        """The coefficients that fit the samples best; None without any.

        Least squares with a small ridge and no coefficient below 0. With five features the best non-negative fit is
        found by looking at every set of features that may be above 0.
        """
        pairs = dict(zip(_PAIRS, self.sums[1 : 1 + len(_PAIRS)], strict=True))
        targets = self.sums[1 + len(_PAIRS) :]
        scales = [math.sqrt(pairs[i, i]) for i in range(len(FEATURES))]
        live = [i for i, scale in enumerate(scales) if scale > 0]
        # Scaled to 1 on the diagonal: the features' units differ by many orders of magnitude.
        matrix = [[pairs[min(i, j), max(i, j)] / (scales[i] * scales[j]) for j in live] for i in live]
        for place in range(len(live)):
            matrix[place][place] = 1.0 + _RIDGE
        right = [targets[i] / scales[i] for i in live]
        best = _best_fit(matrix, right)
        if best is None:
            return None
        values = [0.0] * len(FEATURES)
        for place, value in zip(live, best, strict=True):
            values[place] = value / scales[place]
        return Coefficients(tuple(values))


def past_share(ratios: Sequence[float]) -> float:
    """The factor by which the past is to decay as new samples join it.

    Args:
        ratios: of each new sample, its time as a multiple of what was expected.
    """
    share = float(0.5 ** (len(ratios) / HALF_LIFE))
    if len(ratios) >= _SURE and not 1 / _CHANGED <= median(ratios) <= _CHANGED:
        share *= _WRONG_PAST
    return share


def _features(sizes: Sequence[float]) -> tuple[float, ...]:
    if len(sizes) != _SIZES:
        raise ValueError(f"a job has {_SIZES} sizes: {', '.join(FEATURES[1:])}")
    return (1.0, *(_checked(size) for size in sizes))


def _checked(value: float) -> float:
    if not 0 <= value <= _MOST:
        raise ValueError(f"sizes and times lie from 0 to {_MOST:g}, unlike {value}")
    return float(value)


def _best_fit(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """The non-negative ``x`` that minimizes ``x @ matrix @ x - 2 * right @ x``; None if there is nothing to fit."""
    places = range(len(right))
    best: list[float] | None = None
    least = 0.0
    for size in range(len(right), 0, -1):
        for chosen in combinations(places, size):
            found = _solved([[matrix[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if found is None or min(found) < -_ROUNDING * max(map(abs, found)):
                continue
            # At a set's own minimum the quadratic form is minus this sum.
            gain = sum(right[i] * x for i, x in zip(chosen, found, strict=True))
            if gain > least:
                least = gain
                best = [0.0] * len(right)
                for place, value in zip(chosen, found, strict=True):
                    best[place] = max(0.0, value)
            if size == len(right):
                # Without a bound in its way, the minimum over all features is the minimum.
                return best
    return best


def _solved(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a symmetric, positive definite system by Cholesky's way; None where rounding has made it anything else."""
    size = len(right)
    lower = [[0.0] * size for _ in range(size)]
    forward = [0.0] * size
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            if i != j:
                lower[i][j] = rest / lower[j][j]
            elif rest > _FLAT:
                lower[i][i] = math.sqrt(rest)
            else:
                return None
        forward[i] = (right[i] - sum(lower[i][k] * forward[k] for k in range(i))) / lower[i][i]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = forward[i] - sum(lower[k][i] * found[k] for k in range(i + 1, size))
        found[i] = rest / lower[i][i]
    return found
