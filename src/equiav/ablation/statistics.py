"""Statistics paired over seeds: means, and differences with their 95 % Student interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

CONFIDENCE = 0.95
Verdict = Literal["holds", "reversed", "not told apart", "one seed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, its standard deviation (none for one seed), and how many there were."""

    mean: float
    deviation: float | None
    seeds: int


@dataclass(frozen=True)
class Difference:
    """Mean of the differences between two rows over the seeds both have; the interval needs two of them."""

    mean: float
    half_width: float | None
    seeds: int

    @property
    def is_one(self) -> bool:
        """Called a difference only if its interval excludes zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def summary(values: Sequence[float]) -> Cell | None:
    """Mean and standard deviation; none without values."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return Cell(mean, _deviation(values, mean), len(values))


def _deviation(values: Sequence[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """a - b by seed, with the 95 % interval of Student's t; none where no seed is common."""
    values = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    cell = summary(values)
    if cell is None:
        return None
    if cell.deviation is None:
        return Difference(cell.mean, None, 1)
    half = student_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * cell.deviation / math.sqrt(len(values))
    return Difference(cell.mean, half, len(values))


def verdict(ours: Difference, papers: float) -> Verdict:
    """Whether the sign of the paper's difference is found here."""
    if ours.half_width is None:
        return "one seed"
    if not ours.is_one:
        return "not told apart"
    return "holds" if (ours.mean > 0) == (papers > 0) else "reversed"


def student_quantile(p: float, freedom: int) -> float:
    """The p-quantile of Student's t, by bisection of its distribution function; p at least one half."""
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0."""
    return 1 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction where that converges fast."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    scale = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / (1 + even * d), 1 + even / c
        fraction *= c * d
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / (1 + odd * d), 1 + odd / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * fraction / a
