from __future__ import annotations

import pytest

from benchmarks.engines import overhead


def test_each_arm_has_a_figure_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "STEPS", 3)
    result = overhead.overhead_times(2)
    assert list(result) == ["bare loop", "ignite engine", "MONAI trainer", "Hasten trainer"]
    assert all(len(times) == 2 and min(times) > 0 for times in result.values())
