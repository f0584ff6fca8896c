from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gpu
from benchmarks.gpus.plan import PARTS, seconds_for
from benchmarks.gpus.sheet import FINISHED, RUNNING, bench_name, sheet_of

ROOT = Path(__file__).parents[2]
REHEARSE = ("--device", "cpu", "--quick")


def write_sheet(out: Path, part: str, status: str, **fields: Any) -> Path:
    record = {"bench": bench_name(part, "cpu"), "quick": True, "status": status, "results": {}, "left_out": {}}
    path = out / f"{bench_name(part, 'cpu')}_some-cpu_2026-01-01_quick.json"
    path.write_text(json.dumps(record | {"claims": []} | fields))
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Parts that would be run, with their seconds."""
    results: list[tuple[str, float]] = []
    monkeypatch.setattr(gpu, "run_part", lambda part, given, seconds: results.append((part.name, seconds)))
    return results


@given(st.floats(0, 3600), st.integers(0, len(PARTS) - 1))
def test_a_part_never_takes_what_is_kept_back_for_later_ones(left: float, number: int) -> None:
    part, later = PARTS[number], PARTS[number + 1 :]
    seconds = seconds_for(part, later, left)
    if left < part.least:
        assert seconds is None
    else:
        assert seconds is not None
        assert part.least <= seconds <= min(part.most, left)
        assert seconds == part.least or left - seconds >= sum(other.least for other in later)


def test_all_parts_run_and_finished_ones_do_not(tmp_path: Path, started: list[tuple[str, float]]) -> None:
    write_sheet(tmp_path, "steps", FINISHED)
    write_sheet(tmp_path, "feed", RUNNING)
    gpu.main(["--out", str(tmp_path), *REHEARSE])
    assert [name for name, _ in started] == [part.name for part in PARTS if part.name != "steps"]
    started.clear()
    gpu.main(["--out", str(tmp_path), *REHEARSE, "--again", "--parts", "steps"])
    assert [name for name, _ in started] == ["steps"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_part_runs_on_a_cpu_at_toy_sizes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--budget", "1400", *REHEARSE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list(tmp_path.iterdir())) == len(PARTS)
    for part in PARTS:
        result = sheet_of(part.name, tmp_path, "cpu", quick=True)
        assert result is not None, part.name
        path, record = result
        assert record["status"] == FINISHED, (part.name, record["status"])
        assert record["results"], part.name
        assert "rehearsal-on-cpu" in path.name
        assert not record["claims"]
        unexpected = {what: why for what, why in record["left_out"].items() if "CUDA" not in why}
        assert not unexpected, part.name
