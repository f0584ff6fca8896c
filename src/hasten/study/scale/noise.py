"""Whether a difference between two groups of runs is more than their seeds make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from scipy.stats import mannwhitneyu, rankdata

BEYOND = 0.05
"""A difference counts as more than noise if chance alone makes it this often or less."""
_COUNTED = 200_000
"""Ways of dealing the values that are still counted one by one."""


def chance(low: Sequence[float], high: Sequence[float]) -> float:
    """How often values dealt at random give a `low` group whose ranks are as low as these: exact, one-sided.

    The test of Wilcoxon, Mann and Whitney; it asks nothing of how the values are distributed. 3 against 3 reach 0.05
    at the least, 2 against 2 no less than 1/6. Both groups have at least one value.
    """
    ranks = rankdata([*low, *high]).tolist()
    count, rank_sum = len(low), sum(ranks[: len(low)])
    deals = math.comb(len(ranks), count)
    if deals <= _COUNTED:
        # scipy's exact method takes no equal values into account.
        return sum(sum(values) <= rank_sum + 1e-9 for values in combinations(ranks, count)) / deals
    if min(ranks) == max(ranks):
        return 1.0
    return float(mannwhitneyu(low, high, alternative="less", method="asymptotic").pvalue)


def least_chance(low: int, high: int) -> float:
    """The smallest `chance` that groups of these sizes can have."""
    return 1 / math.comb(low + high, low)
