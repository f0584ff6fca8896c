from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import pathology


@pytest.mark.slow
def test_a_quick_run_writes_both_parts(tmp_path: Path) -> None:
    pathology.main(["--quick", "--out", str(tmp_path)])
    record = json.loads(next(tmp_path.glob("pathology_*_quick.json")).read_text())
    assert {name.partition("/")[0] for name in record["results"]} == {"reading", "epoch"}
    assert len(record["claims"]) == 2
