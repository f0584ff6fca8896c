from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gpu
from benchmarks.gpus.plan import PARTS, parts_named, seconds_for
from benchmarks.gpus.sheet import FINISHED, RUNNING, bench_name, sheet_of
from benchmarks.gpus.table import print_table

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


def test_the_usual_budget_has_room_for_all() -> None:
    left, shares = 540.0, {}
    for number, part in enumerate(PARTS):
        seconds = seconds_for(part, PARTS[number + 1 :], left)
        assert seconds is not None, part.name
        shares[part.name] = seconds
        left -= seconds
    assert shares["target"] >= 100
    assert shares["gate"] >= 40


def test_parts_keep_their_order() -> None:
    assert [part.name for part in parts_named(["gate", "card"])] == ["card", "gate"]


def test_all_parts_run_and_finished_ones_do_not(tmp_path: Path, started: list[tuple[str, float]]) -> None:
    write_sheet(tmp_path, "steps", FINISHED)
    write_sheet(tmp_path, "feed", RUNNING)
    gpu.main(["--out", str(tmp_path), *REHEARSE])
    assert [name for name, _ in started] == [part.name for part in PARTS if part.name != "steps"]
    started.clear()
    gpu.main(["--out", str(tmp_path), *REHEARSE, "--again", "--parts", "steps"])
    assert [name for name, _ in started] == ["steps"]


def test_what_does_not_fit_the_budget_is_not_started(tmp_path: Path, started: list[tuple[str, float]]) -> None:
    gpu.main(["--out", str(tmp_path), *REHEARSE, "--budget", "30"])
    # Less what the ending takes; the stand-in for a part takes no time.
    assert [name for name, _ in started] == [part.name for part in PARTS if part.least <= 30 - gpu.GRACE]
    assert all(seconds <= 30 for _, seconds in started)
    started.clear()
    gpu.main(["--out", str(tmp_path), *REHEARSE, "--budget", "1"])
    assert not started


def test_a_part_that_is_asked_for_alone_gets_what_there_is(tmp_path: Path, started: list[tuple[str, float]]) -> None:
    gpu.main(["--out", str(tmp_path), "--parts", "steps", "--budget", "20", *REHEARSE])
    ((name, seconds),) = started
    assert name == "steps"
    assert 10 < seconds < 20


def test_being_told_to_end_still_prints_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        write_sheet(tmp_path, "card", FINISHED, results={"copy_GB/s": {"n": 1, "median": 5.0, "min": 5.0, "max": 5.0}})
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(gpu, "run_part", stopped)
    try:
        gpu.main(["--out", str(tmp_path), *REHEARSE])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "copy_GB/s 5 [5, 5] n=1" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [("--device", "cpu"), ()], ids=["cpu without quick", "no CUDA device"])
def test_a_machine_without_a_gpu_is_told_how_to_rehearse(
    tmp_path: Path, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path), *argv])
    assert "--quick" in capsys.readouterr().err


OVERSTAYS = """
import signal, subprocess, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
out = Path(sys.argv[sys.argv.index("--out") + 1])
(out / "pid").write_text(str(own.pid))
(out / "NAME_x_2026-01-01_quick.json").write_text('{"bench": "NAME", "quick": true, "status": "running"}')
time.sleep(60)
"""


def test_a_part_that_overstays_is_ended_with_all_it_started_and_its_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bench_name("card", "cpu")
    monkeypatch.setattr(gpu, "CHILD", ("-c", OVERSTAYS.replace("NAME", name)))
    monkeypatch.setattr(gpu, "GRACE", 0.2)
    arguments = gpu.arguments(["--out", str(tmp_path), *REHEARSE])
    gpu.run_part(PARTS[0], arguments, 3.0)
    result = sheet_of("card", tmp_path, "cpu", quick=True)
    assert result is not None
    assert result[1]["status"] == "killed, as its time was up"
    own = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not Path(f"/proc/{own}").exists() or "Z" in Path(f"/proc/{own}/stat").read_text().split()[2]:
            break
        time.sleep(0.1)
    else:
        pytest.fail("what the part had started is still at work")


def test_a_part_that_dies_leaves_its_figures_and_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bench_name("card", "cpu")
    dies = OVERSTAYS.replace("NAME", name).replace("time.sleep(60)\n", "own.kill(); import os; os._exit(7)\n")
    monkeypatch.setattr(gpu, "CHILD", ("-c", dies))
    gpu.run_part(PARTS[0], gpu.arguments(["--out", str(tmp_path), *REHEARSE]), 20.0)
    result = sheet_of("card", tmp_path, "cpu", quick=True)
    assert result is not None
    assert result[1]["status"] == "ended with exit code 7"


def test_files_that_cannot_be_read_are_no_results(tmp_path: Path) -> None:
    write_sheet(tmp_path, "card", FINISHED).write_text("{")
    assert sheet_of("card", tmp_path, "cpu", quick=True) is None
    write_sheet(tmp_path, "card", FINISHED)
    assert sheet_of("card", tmp_path, "cpu", quick=False) is None
    assert sheet_of("card", tmp_path, "cuda", quick=True) is None


def test_the_table_leaves_twins_and_details_to_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"n": 1, "median": 2.0, "min": 1.0, "max": 3.0}
    names = ("a/x_ms", "a/x_patches/s", "a/x_Mvoxel/s", "b_ms", "conv3d/32@8/bf16_TFLOP/s")
    claims = [{"name": "fast", "value": None, "goal": ">= 2", "holds": False}]
    write_sheet(
        tmp_path, "card", "cut off", results=dict.fromkeys(names, row) | {"none_s": {"n": 0}},
        left_out={"sleep": "no time"}, rehearsed_claims=claims,
    )  # fmt: skip
    print_table(tmp_path, "cpu", quick=True)
    output = capsys.readouterr().out
    assert "card (cut off)" in output
    assert "steps: not measured" in output
    assert "a/x_patches/s 2 [1, 3] n=1" in output
    assert "b_ms" in output
    assert "left out: sleep: no time" in output
    assert "DOES NOT HOLD: fast: not run (>= 2)" in output
    assert not any(absent in output for absent in ("a/x_ms", "Mvoxel", "conv3d", "none_s"))


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
