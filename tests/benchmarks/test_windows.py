"""Dice of whole volumes and of windows by one trained network."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.windows import arm_of, label


def test_both_ways_by_the_same_weights(boxes: Path, tmp_path: Path) -> None:
    found = arm_of(((24, 24, 24), 2, "batch"), boxes, 0, tmp_path, steps=3)
    assert found["gain"] == pytest.approx(found["windows_dice"] - found["whole_dice"])
    assert all(0 <= found[f"{way}_dice"] <= 1 and found[f"{way}_s"] > 0 for way in ("whole", "windows"))
    # A window that holds every volume is the whole volume.
    found = arm_of(((48, 48, 48), 2, "instance"), boxes, 0, tmp_path, steps=3)
    assert found["gain"] == 0


def test_an_arm_is_named_by_what_it_is() -> None:
    assert label(((32, 48, 32), 4, "instance")) == "32x48x32 instance"
