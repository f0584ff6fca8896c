from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpus.plan import PARTS, seconds_for
from benchmarks.gpus.sheet import FINISHED, sheet_of

ROOT = Path(__file__).parents[2]
REHEARSE = ("--device", "cpu", "--quick")


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
