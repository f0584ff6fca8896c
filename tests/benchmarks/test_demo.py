from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import demo
from benchmarks.demo import shares, shown_time, speed_up, table_rows, write_run
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


@pytest.mark.parametrize("reached", [True, False])
def test_the_page_reads_the_regular_arm(reached: bool, tmp_path: Path) -> None:
    from hasten.report.page import write_report
    from hasten.report.read import read_run

    for name in ("one", "two"):
        write_run(result("regular", reached=reached), tmp_path / name, name)
    run = read_run(tmp_path / "one")
    assert (run.status, run.best_score) == ("target_reached" if reached else "time_up", 0.85 if reached else 0.5)
    assert run.target_time_s == (40.0 if reached else None)
    assert run.wait_share == 0.5
    assert run.samples_per_s == pytest.approx(12 * 4 / 20)
    assert [record.loss for record in run.train] == [0.7, 0.6]
    html = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "report.html").read_text()
    assert "one" in html


def test_both_runs_do_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PHANTOM", {"shape": (16, 32, 32), "spacing": (10.0, 8.0, 8.0)})
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    task = demo.make_task(tmp_path)
    assert (len(task.train), len(task.validation)) == (12, 4)
    assert task.spacing == (5.0, 3.0, 3.0)
    assert (task.patch, task.roi, task.target) == ((32, 64, 64), (32, 64, 64), 0.8)
    assert task.peer.cases * task.peer.crops == task.run["sample"]["batch_size"] == 4
