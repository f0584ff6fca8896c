from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.listing import bend, claims_of, run, write_tiles
from benchmarks.ours import first_step


def test_tiles_are_a_data_set_of_few_files(tmp_path: Path) -> None:
    from hasten.cases.sources import load_case_set

    cases = load_case_set(write_tiles(tmp_path / "set", 70))
    assert len(cases.cases) == 70
    assert cases.spatial_dims == 2
    files = [path.stat().st_ino for case in cases.cases for path in (*case.image, case.label) if path is not None]
    assert len(files) == 140
    assert len(set(files)) == 128


def test_the_first_step_of_a_second_run_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    few, data = write_tiles(tmp_path / "few", 4), write_tiles(tmp_path / "set", 6)
    first_step.main(few, data, tmp_path / "run")
    content = json.loads((tmp_path / "run.json").read_text())
    assert 0 < content["s"] <= content["all_s"]


def test_a_process_is_timed_with_its_peak(tmp_path: Path) -> None:
    seconds, mib = run(["-c", "bytearray(200 * 2**20)"], tmp_path)
    assert seconds > 0
    assert mib > 200


def test_a_line_bends_where_tiles_become_dearer() -> None:
    assert bend((10, 20, 40), (1.0, 2.0, 4.0)) == pytest.approx(1.0)
    assert bend((10, 20, 40), (1.0, 2.0, 6.0)) == pytest.approx(2.0)
    assert bend((10, 20, 40), (2.0, 2.0, 6.0)) is None


def test_goals_are_judged_at_their_size() -> None:
    sizes = (2_000, 20_000, 200_000)
    series = ("plan_second_s", "plan_second_mib", "step_s", "step_mib")
    results = {f"{size}/{name}": [1.0 + size / 20_000] for size in sizes for name in series}
    claims = claims_of(results, sizes)
    assert [claim.value for claim in claims] == [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert all(claim.holds for claim in claims)
