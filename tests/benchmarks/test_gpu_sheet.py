from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpus.sheet import Sheet, new_sheet
from benchmarks.harness import Claim

CPU = torch.device("cpu")


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sheet:
    monkeypatch.setattr("benchmarks.harness.busy_machine", lambda: 0.0)
    return new_sheet("card", tmp_path / "new", CPU, quick=True, seconds=60)


def on_disk(sheet: Sheet) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(sheet.path.read_text())
    return content


def test_every_figure_is_on_the_disk_at_once(sheet: Sheet) -> None:
    assert on_disk(sheet)["status"] == "running"
    sheet.keep({"a_ms": [3, 1, 2]})
    assert on_disk(sheet)["results"]["a_ms"]["median"] == 2
    sheet.tell("where", Path("/some/where"))
    assert on_disk(sheet)["settings"] == {"where": "where"}
    sheet.keep({"b_ms": [float("nan")]})
    assert on_disk(sheet)["results"]["b_ms"]["raw"] == [None]
    assert [path.name for path in sheet.path.parent.iterdir()] == [sheet.path.name]


def test_a_rehearsal_claims_nothing_and_says_what_it_is(sheet: Sheet) -> None:
    sheet.claim(Claim.at_least("fast", 3.0, 2.0))
    result = on_disk(sheet)
    assert result["claims"] == []
    assert result["rehearsed_claims"][0]["holds"]
    assert result["device"] == "cpu"
    assert "rehearsal-on-cpu" in sheet.path.name
    assert sheet.path.name.endswith("_quick.json")
