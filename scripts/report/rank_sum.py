# SPDX-License-Identifier: Apache-2.0
"""How many times as large one set of measurements is as another, of which no two belong together.

What benchstat does for Go's benchmarks: medians, and the rank sum test of Mann and Whitney.
"""
import functools
import math
import statistics
from typing import NamedTuple

TAIL = 0.025
EXACT_PAIRS = 1024  # above, the normal approximation is as good


class Ratio(NamedTuple):
    median: float
    low: float   # holds the true ratio with 95 % where `bounded`, else the least
    high: float
    bounded: bool

    def told_apart(self):
        return self.bounded and (self.low > 1 or self.high < 1)


def _chances(m, n):
    """P(U = u) for u = 0 .. m n, of m and n values from one distribution."""
    # rows[j][u] for i values against j; the largest of all is one of the i, or one of the j.
    rows = [[1.0] + [0.0] * (m * n) for _ in range(n + 1)]
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            row = rows[j]  # of i - 1 until here
            rows[j] = [(i * (row[u - j] if u >= j else 0) + j * rows[j - 1][u]) / (i + j)
                       for u in range(m * n + 1)]
    return rows[n]


@functools.lru_cache(maxsize=None)
def rank_of_bound(m, n):
    """The largest k with P(U < k) <= 2.5 %; 0: there is none."""
    if m * n > EXACT_PAIRS:
        deviation = math.sqrt(m * n * (m + n + 1) / 12)
        return math.floor(m * n / 2 - statistics.NormalDist().inv_cdf(1 - TAIL) * deviation)
    below = 0.0
    for k, chance in enumerate(_chances(m, n)):
        below += chance
        if below > TAIL:
            return k
    return m * n


def unpaired_ratio(a, b):
    """Of b / a: the median of all ratios, and the interval that the test leaves at 95 %."""
    ratios = sorted(of / to for of in b for to in a)
    rank = rank_of_bound(len(a), len(b))
    place = max(rank, 1) - 1
    return Ratio(statistics.median(ratios), ratios[place], ratios[-1 - place], rank > 0)
