from __future__ import annotations

from typing import Any

from benchmarks.engines.ablation import LEVEL, table


def run(*dice: float) -> dict[str, Any]:
    return {"curve": [{"seconds": 10.0 * at, "step": at, "dice": value} for at, value in enumerate(dice, start=1)]}


def test_a_table_counts_only_runs_that_reached_the_level() -> None:
    result = table({"one": [run(0.5, LEVEL, 0.9), run(0.4, 0.6)]})
    assert result == {
        f"one/seconds to {LEVEL}": [20.0],
        f"one/steps to {LEVEL}": [2.0],
        "one/best Dice": [0.9, 0.6],
    }
