"""Dice of whole volumes and of windows by one trained network."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.windows import Arm, config_of, measured


@pytest.mark.slow
def test_both_ways_by_the_same_weights(boxes: Path, tmp_path: Path) -> None:
    def of(arm: Arm) -> dict[str, float]:
        return measured(config_of(arm, boxes, 0, steps=3, channels=(4, 8, 8, 8)), tmp_path)

    result = of(Arm(patch=(24, 24, 24), batch_size=2, norm="batch"))
    assert result["gain"] == pytest.approx(result["windows_dice"] - result["whole_dice"])
    assert all(0 <= result[f"{way}_dice"] <= 1 and result[f"{way}_s"] > 0 for way in ("whole", "windows"))
    # A window that holds every volume is the whole volume.
    result = of(Arm(patch=(48, 48, 48), batch_size=2, norm="instance"))
    assert result["gain"] == 0


def test_an_arm_is_named_by_what_it_is() -> None:
    assert Arm(patch=(32, 48, 32), batch_size=4, norm="instance").name == "32x48x32 instance"
