from __future__ import annotations

from typing import Any

import pytest

from benchmarks.demo import shares, shown_time, speed_up, table_rows
from benchmarks.ladder.outcome import Time


def result(arm: str, *, reached: bool) -> dict[str, Any]:
    curve = [
        {"seconds": 20.0, "step": 6, "epoch": 1, "dice": 0.4, "per_class": [0.4], "loss": 0.7, "samples_per_s": 3.0,
         "wait_share": 0.5},
        {"seconds": 40.0, "step": 12, "epoch": 2, "dice": 0.85 if reached else 0.5, "per_class": [0.5], "loss": 0.6,
         "samples_per_s": 3.0, "wait_share": 0.5},
    ]  # fmt: skip
    return {
        "arm": arm, "notes": "how", "curve": curve, "best": curve[-1]["dice"],
        "settings": {"target": 0.8, "max_seconds": 50.0, "metric": "dice", "workers": 2},
        "stopped": "target" if reached else "max_seconds", "steps": 12, "seconds_per_epoch": [14.0, 16.0, 15.0],
        "cases": {"train": 12, "validation": 4},
        "seconds": {"import": 5.0, "cache": 0.0, "train": 10.0, "wait": 10.0, "validate": 3.0, "total": 41.0},
    }  # fmt: skip


def test_parts_add_up_to_the_total() -> None:
    output = shares(result("regular", reached=True))
    assert sum(output.values()) == pytest.approx(41)
    assert output["other"] == pytest.approx(13)


def test_a_stopped_run_is_reported_as_slower_than_that() -> None:
    assert shown_time(Time(50, False)) == "> 50 s"
    assert speed_up(Time(50, False), Time(10, True)) == "> 5.0x"
    assert speed_up(Time(50, True), Time(10, True)) == "5.0x"
    assert speed_up(Time(50, True), Time(10, False)) == "-"
    rows = {row[0].strip(): row[1:] for row in table_rows(result("a", reached=False), result("b", reached=True))}
    assert rows["time to mean Dice 0.8"] == ("> 50 s", "40.0 s")
    assert rows["an epoch (24 patches)"] == ("15.0 s", "15.0 s")
    assert rows["train"] == ("10.0 s (24%)", "10.0 s (24%)")
