from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from hasten.study.scale.analyse import chance, least_chance


@given(
    low=st.lists(st.integers(0, 1000), min_size=2, max_size=6),
    high=st.lists(st.integers(0, 1000), min_size=2, max_size=6),
)
def test_as_scipy_where_no_two_values_are_equal(low: list[int], high: list[int]) -> None:
    if len({*low, *high}) < len(low) + len(high):
        return
    assert chance(low, high) == pytest.approx(mannwhitneyu(low, high, alternative="less", method="exact").pvalue)


def test_ends() -> None:
    assert chance([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20) == least_chance(3, 3)
    assert chance([4, 5, 6], [1, 2, 3]) == 1.0
    assert chance([1, 2], [3, 4]) == pytest.approx(1 / 6) == least_chance(2, 2)
    assert chance([5, 5], [5, 5]) == 1.0
    # Too many ways to count them one by one.
    assert chance(range(20), range(20, 40)) < 1e-3
    assert 0.3 < chance(range(0, 40, 2), range(1, 41, 2)) < 0.6
    assert chance([7] * 20, [7] * 20) == 1.0
