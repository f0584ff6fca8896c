"""A run seen from outside: running, over, killed, not begun, damaged, and no run at all."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hasten.observe.monitor.watch import SILENT_METRICS_S, SILENT_S, View, view_of
from tests.observe.monitor.series import series, start, write

NOW = 1_700_000_000.0


def lines(folder: Path, *records: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def train(step: int, **more: Any) -> dict[str, Any]:
    fields = {"kind": "train", "step": step, "time_s": 10 + step / 2, "loss": 1 / step}
    return fields | {"samples_per_s": 16.0, "wait_share": 0.012} | more


def validation(step: int, dice: float) -> dict[str, Any]:
    return {"kind": "validation", "step": step, "time_s": 10 + step / 2, "dice": dice}


def age(folder: Path, seconds: float) -> None:
    """Make every file that old."""
    for path in folder.iterdir():
        os.utime(path, (NOW - seconds, NOW - seconds))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has just written."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text("train:\n  steps: 400\n  target: 0.87\n")
    lines(folder, *(train(step) for step in range(10, 101, 10)), validation(50, 0.8), validation(100, 0.7))
    write(folder / "monitor.jsonl", series(60), before=[start()])
    age(folder, 1)
    return folder


def watch(folder: Path) -> View:
    return view_of(folder, now=lambda: NOW)


def shown(folder: Path, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(watch(folder).frame, soft_wrap=width == 120)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_running_run(run: Path) -> None:
    view = watch(run)
    assert (view.state, view.is_over) == ("running", False)
    text = shown(run)
    for words in (
        "run  running",
        "step 118/400 (30%)",
        "loss 0.0100  Dice 0.7000 (best 0.8000 at step 50, target 0.8700)",
        "16.0 samples/s  waiting for data 1.2%",
        "500 ms a step",
        "GPU 0 95% 7.8/78 GiB 1900 MHz",
        "CPU 80%",
        "RAM 7.8 of 31.2 GiB",
    ):
        assert words in text
    assert max(len(line) for line in shown(run, 60).splitlines()) <= 60


def test_a_run_that_was_killed(run: Path) -> None:
    age(run, SILENT_S - 1)
    assert watch(run).state == "running"
    age(run, 47)
    view = watch(run)
    assert (view.state, view.is_over) == ("silent", False)
    text = shown(run)
    assert "no news for 47 s" in text
    assert f"hasten train --resume --out {run}" in text


def test_a_run_without_a_monitor_or_with_a_slow_one_is_waited_for(run: Path) -> None:
    (run / "monitor.jsonl").unlink()
    age(run, SILENT_METRICS_S - 1)
    assert watch(run).state == "running"
    assert "step 100/400 (25%)" in shown(run)
    age(run, SILENT_METRICS_S + 1)
    assert "no news for" in shown(run)
    write(run / "monitor.jsonl", series(90, every=30), before=[start(every=30)])
    age(run, 100)
    assert watch(run).state == "running"
    age(run, 200)
    assert watch(run).state == "silent"


def test_a_run_that_is_over(run: Path) -> None:
    # One that was resumed is not taken for over by its old summary.
    (run / "summary.json").write_text(json.dumps({"status": "interrupted", "steps": 50}))
    for seconds, state in ((1, "running"), (60, "silent")):
        age(run, seconds)
        os.utime(run / "summary.json", (NOW - 3000, NOW - 3000))
        assert watch(run).state == state
    write(run / "monitor.jsonl", [], after=[{"kind": "stop"}])
    whole = {"seconds": {"total": 75.0, "train": 50.0}, "samples_per_s": 14.0, "wait_share": 0.05}
    (run / "summary.json").write_text(json.dumps({"status": "target_reached", "steps": 100, "name": "hippo", **whole}))
    age(run, 5000)
    view = watch(run)
    assert (view.state, view.is_over) == ("target_reached", True)
    # As its summary and its report have it, and not as the last line of its training.
    assert "hippo  target reached  75 s\n" in shown(run)
    assert "14.0 samples/s  waiting for data 5.0%" in shown(run)


@pytest.mark.parametrize("names", [(), ("checkpoints",), ("run.yaml", "plan.json", "checkpoints")])
def test_a_run_that_has_not_begun(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).mkdir() if name == "checkpoints" else (tmp_path / name).write_text("")
    view = watch(tmp_path)
    assert (view.state, view.is_over) == ("waiting", False)
    assert shown(tmp_path) == f"{tmp_path.name}  nothing written yet\n"


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing: does not exist; give the folder"):
        view_of(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file: is a file"):
        view_of(tmp_path / "file")
    with pytest.raises(ValueError, match=r"holds no run \(run\.yaml is missing\)"):
        view_of(tmp_path)
    (tmp_path / "cv.yaml").touch()
    with pytest.raises(ValueError, match="is a cross-validation, not a run; name one of its folds"):
        view_of(tmp_path)


def test_a_job_that_waits_in_the_queue(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()  # with its script
    assert view_of(tmp_path).state == "waiting"


@pytest.mark.parametrize("name", ["run.yaml", "metrics.jsonl", "monitor.jsonl", "summary.json"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"\xff\xfe\x00\n", b'{"kind": "train", "step": "x"}\n', None]
)
def test_a_damaged_or_missing_file_leaves_the_rest(run: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (run / name).unlink(missing_ok=True)
    else:
        (run / name).write_bytes(content)
    age(run, 1)
    text = shown(run)
    assert "running" in text
    assert "step " in text


def test_ranks_and_alerts_and_notes(run: Path) -> None:
    (run / "monitor.jsonl").unlink()
    for rank in range(3):
        name = f"monitor-rank{rank}.jsonl" if rank else "monitor.jsonl"
        samples = series(90, step_s=0.6 if rank == 1 else 0.3)
        write(run / name, samples, before=[start(rank=rank, world_size=3), {"kind": "note", "text": "the same note"}])
    age(run, 1)
    text = shown(run)
    assert text.count("! ") == 1
    assert "! Rank 1 takes 600 ms a step and the others 300 ms" in text
    assert text.count("the same note") == 1
    assert all(f"rank {rank}  step" in text for rank in range(3))
