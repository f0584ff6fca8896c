"""The page and the JSON of a prediction."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hasten.study.scale.predict.figure import efficiency_figure
from hasten.study.scale.predict.fit import predictions
from hasten.study.scale.predict.links import LINKS, Network
from hasten.study.scale.predict.page import columns, row, verdict, write
from hasten.study.scale.predict.source import Source, source_of
from tests.study.scale.predict.sources import write_logs, write_run

COUNTS = (8, 64, 1024)


@pytest.fixture
def logs(tmp_path: Path) -> Source:
    return source_of(write_logs(tmp_path / "logs", {1: 100.0, 2: 54.0, 4: 28.0}), network=None, mode=None)


@pytest.fixture
def run(tmp_path: Path) -> Source:
    network = Network(between=LINKS["ib200"], inside=LINKS["nvlink3"], per_node=8)
    return source_of(write_run(tmp_path / "run"), network=network, mode=None)


def test_a_page_and_json_of_logs(logs: Source, tmp_path: Path) -> None:
    found = predictions(logs.fitted, COUNTS, logs.mode)
    facts, page = write(tmp_path / "out", found, logs)
    told = json.loads(facts.read_text())
    assert [one["workers"] for one in told["predictions"]] == list(COUNTS)
    one = told["predictions"][0]
    assert one["efficiency_range"][0] <= one["efficiency"] <= one["efficiency_range"][1]
    assert told["measured_epochs"][2] == {"workers": 4, "epoch_s": 28.0}
    html = page.read_text()
    assert "Predicted scaling of logs" in html
    assert "Fitted to an epoch" in html
    assert verdict(found, logs) in html
    # Crosses where it was measured, circles where the model was asked, and over the measured counts too.
    assert html.count("<path d=") == 3
    assert html.count("<circle") == 6
    assert "The network" not in html


def test_a_page_of_a_run_names_its_links(run: Source, tmp_path: Path) -> None:
    found = predictions(run.fitted, COUNTS, run.mode)
    _, page = write(tmp_path / "out", found, run)
    html = page.read_text()
    assert "nvlink3" in html
    assert "ib200" in html
    assert "data sheet" in html
    assert columns(run)[3] == "Step"
    assert row(found[0], run)[0] == "8"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="can't be written"):
        write(tmp_path / "file", found, run)


def test_the_figure_s_labels_do_not_touch_and_what_is_fast_is_drawn_higher(run: Source) -> None:
    found = predictions(run.fitted, list(range(1, 40)), run.mode)
    drawing = ET.fromstring(efficiency_figure(found, [(1, 1.0), (3, 1.05)]))
    places = [float(text.get("x", "")) for text in drawing.iter("text") if re.fullmatch(r"\d+", text.text or "")]
    assert len(places) > 3
    assert min(abs(a - b) for a in places for b in places if a != b) >= 34
    heights = [float(circle.get("cy", "")) for circle in drawing.iter("circle")]
    assert heights == sorted(heights)
    assert all(12 <= height <= 230 for height in heights)
