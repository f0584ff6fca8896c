from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.ladder.figure import Bar, ladder
from benchmarks.ladder.outcome import Time
from benchmarks.ladder.rungs import rungs_named
from benchmarks.ladder.show import COLUMNS, Ladder, chart, rows, standalone_chart, standalone_curves, verdict, write
from benchmarks.ladder.task import Task
from tests.benchmarks.ladder.results import CUT_OFF, run

HUES = ("#c07000", "#1f7fc1", "#18212b")
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


def test_curves_beside_a_published_value(measured: Ladder) -> None:
    measured.results["regular"][0]["curve"].clear()  # both runs were stopped before a validation
    text = standalone_curves(measured, 0.89)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "var(" not in text
    assert "nnU-Net, published: 0.89" in text
    drawn = [len(re.findall(f'clip-path="[^"]*" style="fill: none; stroke: {hue}', text)) for hue in HUES]
    assert drawn == [0, 2, 2]
    assert re.search(r'clip-path="[^"]*" style="fill: none; stroke-dasharray: [^"]*; stroke: #566270', text)


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


def test_verdict_of_half_a_ladder(measured: Ladder) -> None:
    def of(results: dict[str, Any]) -> str:
        return verdict(dataclasses.replace(measured, results=results)).replace("\N{NO-BREAK SPACE}", " ")

    assert of({"regular": measured.results["regular"]}) == "Time to Dice 0.90, rung by rung."
    assert of({"hasten": measured.results["regular"]}) == "Hasten did not reach Dice 0.90 within 100 s."
    assert of({"hasten": measured.results["hasten"]}) == "Hasten reaches Dice 0.90 in 10 s."


def test_files(measured: Ladder, tmp_path: Path) -> None:
    paths = write(tmp_path / "new", measured)
    assert [path.name for path in paths] == ["ladder.json", "ladder.svg", "ladder.html"]
    output = json.loads(paths[0].read_text())
    assert [rung["name"] for rung in output["rungs"]] == ["regular", "algorithms", "hasten"]
    assert output["rungs"][0]["time_to_target"] == {"seconds": 100.0, "reached": False}
    assert len(output["rungs"][2]["runs"]) == 2
    assert str(Path(measured.task.train[0].label).parent) not in paths[0].read_text()
    svg = ElementTree.parse(paths[1]).getroot()
    assert svg.tag.endswith("svg")
    assert "var(" not in paths[1].read_text()
    html = paths[2].read_text()
    assert "Hasten as it comes" in html
    assert "What each rung adds" in html
    with pytest.raises(ValueError, match="choose another --out"):
        write(paths[0], measured)


def test_bounds_end_in_an_arrow(measured: Ladder) -> None:
    svg = chart(measured)
    assert svg.count("<path") == 1
    assert svg.count("<circle") == 6
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)" height="14"', svg)]
    assert widths == sorted(widths, reverse=True)
    assert "42" in standalone_chart(measured)


def test_a_chart_of_nothing() -> None:
    assert ladder([], "x") == ""
    assert ladder([Bar("a", Time(0.0, False), [], False)], "x") == ""
