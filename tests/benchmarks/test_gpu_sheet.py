from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpus import child, feed
from benchmarks.gpus.sheet import FINISHED, Sheet, new_sheet
from benchmarks.gpus.timing import milliseconds, peak_mib, seconds_of, turns
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


def test_what_an_attempt_that_was_cut_off_had_found_is_kept_beside_the_next(sheet: Sheet) -> None:
    sheet.keep({"a_ms": [3.0]})
    again = new_sheet("card", sheet.path.parent, CPU, quick=True, seconds=60)
    assert again.path == sheet.path
    assert on_disk(again)["earlier"]["results"]["a_ms"]["median"] == 3
    assert on_disk(again)["results"] == {}
    again.status = FINISHED
    again.write()
    assert "earlier" not in on_disk(new_sheet("card", sheet.path.parent, CPU, quick=True, seconds=60))


def test_a_rehearsal_claims_nothing_and_says_what_it_is(sheet: Sheet) -> None:
    sheet.claim(Claim.at_least("fast", 3.0, 2.0))
    result = on_disk(sheet)
    assert result["claims"] == []
    assert result["rehearsed_claims"][0]["holds"]
    assert result["device"] == "cpu"
    assert "rehearsal-on-cpu" in sheet.path.name
    assert sheet.path.name.endswith("_quick.json")


def test_what_fails_is_told_and_the_rest_goes_on(sheet: Sheet) -> None:
    def fails(error: Exception) -> None:
        raise error

    sheet.attempt("large", 1, lambda: fails(torch.OutOfMemoryError("CUDA out of memory")))
    sheet.attempt("wrong", 1, lambda: fails(ValueError("no such thing\nand more")))
    sheet.attempt("late", 1e6, lambda: fails(AssertionError("it was run")))
    sheet.attempt("sound", 1, lambda: sheet.keep({"a_s": [1.0]}))
    result = on_disk(sheet)
    assert result["left_out"]["large"] == "out of memory"
    assert result["left_out"]["wrong"] == "failed: ValueError: no such thing"
    assert result["left_out"]["late"].startswith("no time")
    assert result["results"]["a_s"]["n"] == 1


def test_a_fault_of_the_gpu_ends_the_part(sheet: Sheet) -> None:
    def faults() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700)

    with pytest.raises(torch.AcceleratorError):
        sheet.attempt("x", 1, faults)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(None, FINISHED, 0), (child.CutOff(), "cut off", 1), (RuntimeError("CUDA error"), "failed: RuntimeError", 1)],
    ids=["finished", "cut off", "failed"],
)
def test_a_part_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, status: str, code: int
) -> None:
    def measure(sheet: Sheet) -> None:
        sheet.keep({"a_s": [1.0]})
        if error is not None:
            raise error

    monkeypatch.setattr("benchmarks.harness.busy_machine", lambda: 0.0)
    monkeypatch.setattr("benchmarks.gpus.card.measure", measure)
    monkeypatch.setattr(child.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        child.main(["card", "--out", str(tmp_path), "--seconds", "600", "--device", "cpu", "--quick"])
    assert ended.value.code == code
    (path,) = tmp_path.iterdir()
    content = json.loads(path.read_text())
    assert content["status"].startswith(status)
    assert content["results"]["a_s"]["n"] == 1


def test_arms_take_turns_and_each_figure_is_of_one_call() -> None:
    calls: list[str] = []
    times = turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, rounds=2, repeats=2, warmup=1)
    assert calls == list("aabb" * 3)
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
    assert milliseconds(lambda: time.sleep(0.01), CPU, repeats=3)() < 1e3
    assert 0.01 <= seconds_of(lambda: time.sleep(0.01), CPU) < 1
    assert peak_mib(lambda: None, CPU) is None


def test_waits_are_the_warnings_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def call() -> None:
        for _ in range(2):  # from one line: each counts
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert feed.waits_of(call) == 2
    assert modes == ["warn", "default"]
