"""The page and the JSON of a prediction."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hasten.study.scale.predict.fit import predictions
from hasten.study.scale.predict.links import LINKS, Network
from hasten.study.scale.predict.page import table_of, verdict, write
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
    result = predictions(logs.fitted, COUNTS, logs.mode)
    facts, page = write(tmp_path / "out", result, logs)
    output = json.loads(facts.read_text())
    assert [one["workers"] for one in output["predictions"]] == list(COUNTS)
    one = output["predictions"][0]
    assert one["efficiency_range"][0] <= one["efficiency"] <= one["efficiency_range"][1]
    assert output["measured_epochs"][2] == {"workers": 4, "epoch_s": 28.0}
    html = page.read_text()
    assert "Predicted scaling of logs" in html
    assert "Fitted to an epoch" in html
    assert verdict(result, logs) in html
    # Crosses where it was measured; circles where the model was asked and over the measured counts too, and the range.
    assert len(re.findall(r"<use [^>]*var\(--c2\)", html)) == 3
    assert len(re.findall(r"<use [^>]*var\(--c1\)", html)) == 6 + 1
    assert "The network" not in html


def test_a_page_of_a_run_names_its_links(run: Source, tmp_path: Path) -> None:
    result = predictions(run.fitted, COUNTS, run.mode)
    _, page = write(tmp_path / "out", result, run)
    html = page.read_text()
    assert "nvlink3" in html
    assert "ib200" in html
    assert "data sheet" in html
    table = table_of(result, run)
    assert table.columns[3] == "Step"
    assert table.rows[0][0] == "8"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="can't be written"):
        write(tmp_path / "file", result, run)
