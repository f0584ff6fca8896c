"""Whether a difference between two groups of runs is more than their seeds make."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations

BEYOND = 0.05
"""A difference counts as more than noise if chance alone makes it this often or less."""
_COUNTED = 200_000
"""Ways of dealing the values that are still counted one by one."""


def chance(low: Sequence[float], high: Sequence[float]) -> float:
    """How often values dealt at random give a `low` group whose ranks are as low as these: exact, one-sided.

    The test of Wilcoxon, Mann and Whitney; it asks nothing of how the values are distributed. 3 against 3 reach 0.05
    at the least, 2 against 2 no less than 1/6. Both groups have at least one value.
    """
    ranks = _ranks([*low, *high])
    count, rank_sum = len(low), sum(ranks[: len(low)])
    if math.comb(len(ranks), count) <= _COUNTED:
        as_low = sum(sum(values) <= rank_sum + 1e-9 for values in combinations(ranks, count))
        return as_low / math.comb(len(ranks), count)
    mean = statistics.fmean(ranks)
    variance = count * len(high) / (len(ranks) - 1) * statistics.fmean((rank - mean) ** 2 for rank in ranks)
    if variance == 0:
        return 1.0
    return statistics.NormalDist(count * mean, math.sqrt(variance)).cdf(rank_sum + 0.5)


def least_chance(low: int, high: int) -> float:
    """The smallest `chance` that groups of these sizes can have."""
    return 1 / math.comb(low + high, low)


def _ranks(values: Sequence[float]) -> list[float]:
    """Of each value, from 1; equal ones share the mean of theirs."""
    ordered = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(ordered, start=1)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]
