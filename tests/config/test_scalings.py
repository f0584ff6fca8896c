from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.config.check import check_run
from hasten.config.scalings import Scaling, canonical, scalings
from hasten.config.schema import PrepareConfig, RunConfig

KINDS = st.sampled_from(["zscore", "window", "none"])


def prepare(intensity: Any, window: Any = None) -> PrepareConfig:
    return PrepareConfig(intensity=intensity, window=window)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (prepare("zscore"), [Scaling("zscore")] * 2),
        (prepare("zscore", (0.0, 1.0)), [Scaling("zscore")] * 2),  # a plan notes a window that is not used
        (prepare("window", (0.0, 1.0)), [Scaling("window", (0.0, 1.0))] * 2),
        (prepare(("window", "zscore"), (0.0, 1.0)), [Scaling("window", (0.0, 1.0)), Scaling("zscore")]),
        (prepare(("none", "window"), (None, (0.0, 1.0))), [Scaling("none"), Scaling("window", (0.0, 1.0))]),
        (prepare("window", ((0.0, 1.0), (2, 3))), [Scaling("window", (0.0, 1.0)), Scaling("window", (2, 3))]),
    ],
)
def test_what_is_done_to_each_channel(config: PrepareConfig, expected: list[Scaling]) -> None:
    assert list(scalings(config, 2)) == expected


@given(kinds=st.lists(KINDS, min_size=1, max_size=4), same=st.booleans())
def test_equal_values_are_one_and_mean_the_same(kinds: list[Any], same: bool) -> None:
    windows = tuple((0.0, 1.0 + index * (not same)) if kind == "window" else None for index, kind in enumerate(kinds))
    config = prepare(tuple(kinds), windows)
    merged = canonical(config)
    assert scalings(merged, len(kinds)) == scalings(config, len(kinds))
    assert isinstance(merged.intensity, str) == (len(set(kinds)) == 1)
    assert canonical(merged) == merged


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            prepare("window", (5.0, 5.0)),
            r"\[low, high\] with low < high \(given \(5\.0, 5\.0\)",
        ),
        (prepare("window", ((0.0, 1.0), (5.0, 5.0))), r"low < high \(given \(5\.0, 5\.0\)\)"),
        (prepare(("window", "zscore"), ((0.0, 1.0), (2.0, 3.0))), r"give \[low, high\] for each channel"),
        (prepare("zscore", ((0.0, 1.0), None)), r"give \[low, high\] for each channel"),
        (prepare(("window", "window"), ((0.0, 1.0), None)), r"give \[low, high\] for each channel"),
        (prepare(("window", "zscore"), ((0.0, 1.0), None, None)), r"give \[low, high\] for each channel"),
    ],
)
def test_windows_that_do_not_fit_are_refused(config: PrepareConfig, message: str) -> None:
    (mistake,) = check_run(RunConfig(prepare=config))
    assert re.search(message, mistake)


def test_a_window_that_nothing_decides_is_missing() -> None:
    with pytest.raises(ValueError, match=r"prepare\.window: .*=window of channel 1 .*range"):
        scalings(prepare(("zscore", "window")), 2)
