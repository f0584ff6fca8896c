from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.ladder.rungs import rungs_named
from benchmarks.ladder.show import COLUMNS, Ladder, rows, standalone_curves, verdict, write
from benchmarks.ladder.task import Task
from tests.benchmarks.ladder.results import CUT_OFF, run

SECONDS = {"import": 3.0, "cache": 2.0, "wait": 1.0, "train": 6.0, "validate": 1.0, "total": 14.0}


@pytest.fixture
def measured(make_task: Callable[..., Task]) -> Ladder:
    cut = run((90, 0.4), (104, None), **CUT_OFF)
    results = {
        "regular": [cut, cut],
        "algorithms": [run((20, 0.3), (44, 0.9)), run((40, 0.9))],
        "hasten": [run((10, 0.9)), run((5, 0.1), (11, 0.95))],
    }
    for runs in results.values():
        runs[:] = [dict(each) | {"seed": seed, "seconds": SECONDS} for seed, each in enumerate(runs)]
    return Ladder(task=make_task(), rungs=rungs_named(["regular", "algorithms", "hasten"]), results=results, level=0.9)


def test_rows_and_verdict(measured: Ladder) -> None:
    lines = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows(measured)}
    plain = {
        name: {column: text.replace("\N{NO-BREAK SPACE}", " ") for column, text in line.items()}
        for name, line in lines.items()
    }
    assert plain["regular"]["Time to target"] == "> 100 s"
    assert plain["regular"]["Reached"] == "0 of 2"
    assert plain["+ algorithms = MONAI fast"]["Time to target"] == "42 s"
    assert plain["Hasten as it comes"]["Range"] == "10 s to 11 s"
    assert plain["Hasten as it comes"]["CPU"] == "90.0 %"
    said = verdict(measured).replace("\N{NO-BREAK SPACE}", " ")
    assert said == (
        "Hasten reaches Dice 0.90 in 10 s; MONAI's fast training takes 4.0 times as long, the regular way takes at "
        "least 9.5 times as long."
    )


def test_files(measured: Ladder, tmp_path: Path) -> None:
    paths = write(tmp_path / "new", measured)
    output = json.loads(paths[0].read_text())
    assert output["rungs"][0]["time_to_target"] == {"seconds": 100.0, "reached": False}
    assert str(Path(measured.task.train[0].label).parent) not in paths[0].read_text()
    drawn = paths[1].read_text()
    assert all(text in drawn for text in ("over 100 s, stopped", ">42 s<", "Hasten as it comes"))
    curves = standalone_curves(measured, 0.89)
    assert ElementTree.fromstring(curves).tag.endswith("svg")
    assert "var(" not in curves
