from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import CHECKPOINTS, METRICS_JSONL, PLAN_JSON, RUN_YAML, SUMMARY_JSON
from hasten.report.page import step_seconds
from hasten.report.read import read_run
from hasten.runtime import measure
from hasten.training import loop
from hasten.training.choose import autotune
from hasten.training.resume import resumed_run
from hasten.training.run import train
from tests.training.runs import (
    Killed,
    assert_equal,
    assert_same_run,
    at_step,
    checkpoint,
    metrics,
    resumed,
)

FP32: tuple[str, ...] = ()
BF16 = ("train.precision=bf16", "train.channels_last=true")
ADAMW = ("train.optimizer=adamw",)
LOG_EVERY = 3
"""Steps between log lines of the 14 steps, by the patch below."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(autouse=True, scope="module")
def _logs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_LOGS", 4)
        yield


@pytest.fixture(scope="module")
def whole(folder: Path, make: Callable[..., RunConfig]) -> Callable[[tuple[str, ...]], Path]:
    """A run of these overrides that was never stopped; made once."""
    made: dict[tuple[str, ...], Path] = {}

    def get(overrides: tuple[str, ...]) -> Path:
        if overrides not in made:
            made[overrides] = folder / f"whole_{len(made)}"
            train(make(*overrides), made[overrides])
        return made[overrides]

    return get


def stopped(config: RunConfig, out: Path, step: int, what: str, *, resume: bool = False) -> None:
    with at_step(step, what), pytest.raises(KeyboardInterrupt if what == "interrupt" else Killed):
        train(config, out, resume=resume)


@pytest.fixture(scope="module")
def half(folder: Path, make: Callable[..., RunConfig]) -> Path:
    """A run that was stopped at step 5; take a copy to go on with it."""
    out = folder / "half"
    stopped(make(), out, 5, "interrupt")
    return out


def scramble() -> None:
    """The generator of the next process starts elsewhere."""
    torch.manual_seed(12345)
    torch.rand(7)


@pytest.mark.parametrize(
    ("overrides", "step"),
    [
        (FP32, 7),
        (ADAMW + BF16, 10),
        *[
            pytest.param(overrides, step, marks=pytest.mark.slow)
            for overrides, step in (
                (FP32, 4),
                (FP32, 9),
                (FP32, 13),
                (BF16, 4),
                (BF16, 7),
                (BF16, 13),
                (ADAMW, 7),
            )
        ],
    ],
    ids=str,
)
def test_interrupted_and_resumed_equals_uninterrupted(
    make: Callable[..., RunConfig],
    whole: Callable[[tuple[str, ...]], Path],
    tmp_path: Path,
    overrides: tuple[str, ...],
    step: int,
) -> None:
    """7, 10 and 13 lie between log lines; with 3 of 4 cases a step, each lies within an epoch."""
    out = tmp_path / "run"
    stopped(make(*overrides), out, step, "interrupt")
    saved = checkpoint(out, "last")
    assert saved["step"] == step
    assert len(saved["extra"]["losses"]) == step % LOG_EVERY
    scramble()
    train(resumed(out), out, resume=True)
    assert_same_run(out, whole(overrides))


@pytest.mark.parametrize("step", [3, 8, *[pytest.param(step, marks=pytest.mark.slow) for step in (5, 12)]])
def test_killed_and_resumed_equals_uninterrupted(
    make: Callable[..., RunConfig], whole: Callable[[tuple[str, ...]], Path], tmp_path: Path, step: int
) -> None:
    """Resuming begins at the last checkpoint, and drops what was recorded after it."""
    out = tmp_path / "run"
    stopped(make(), out, step, "kill")
    assert not (out / SUMMARY_JSON).exists()
    saved = (step - 1) // 4 * 4
    assert (checkpoint(out, "last")["step"] if saved else 0) == saved
    scramble()
    train(resumed(out), out, resume=True)
    assert_same_run(out, whole(FP32))


def test_a_best_later_than_last_is_taken_up(
    make: Callable[..., RunConfig], whole: Callable[[tuple[str, ...]], Path], tmp_path: Path
) -> None:
    """Killed after best.pt of step 4 was written and before last.pt was."""
    out = tmp_path / "run"
    config = make("train.checkpoint_every=14")
    stopped(config, out, 2, "interrupt")
    stopped(resumed(out), out, 6, "kill", resume=True)
    assert checkpoint(out, "best")["step"] == 4
    assert checkpoint(out, "last")["step"] == 2
    train(resumed(out), out, resume=True)
    assert_equal(checkpoint(out, "last"), checkpoint(whole(FP32), "last"))
    assert_equal(checkpoint(out, "best")["weights"], checkpoint(whole(FP32), "best")["weights"])


def test_a_damaged_best_is_written_anew_and_a_damaged_last_is_refused(half: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(half, out)
    for name in ("best", "last"):
        path = out / CHECKPOINTS / f"{name}.pt"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        if name == "best":
            path.write_bytes(data)
            with at_step(8, "kill"), pytest.raises(Killed):
                train(resumed(out), out, resume=True)
            with at_step(10, "interrupt"), pytest.raises(KeyboardInterrupt):
                train(resumed(out), out, resume=True)
            assert checkpoint(out, "best")["step"] == 8
        else:
            path.write_bytes(data)
            before = contents(out)
            with pytest.raises(ValueError, match=r"last\.pt: damaged"):
                train(resumed(out), out, resume=True)
            assert contents(out) == before


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_a_finished_run_that_lost_its_summary_gets_one(
    make: Callable[..., RunConfig], whole: Callable[[tuple[str, ...]], Path], tmp_path: Path
) -> None:
    """Killed between the last checkpoint and the summary: what was reached is read from the metrics."""
    out = tmp_path / "run"
    first = train(make("train.target=1e-9"), out)
    saved = checkpoint(out, "last")
    (out / SUMMARY_JSON).unlink()
    summary = train(resumed(out), out, resume=True)
    for name in ("status", "target", "best", "steps"):
        assert summary[name] == first[name]
    assert_equal(checkpoint(out, "last"), saved)


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("this is not done on resuming")


def test_a_run_that_lost_its_checkpoint_is_not_begun_again(
    make: Callable[..., RunConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    stopped(make(), out, 6, "interrupt")
    (out / "checkpoints/last.pt").unlink()
    (out / SUMMARY_JSON).write_text("{}")
    best = (out / "checkpoints/best.pt").read_bytes()
    with pytest.raises(ValueError, match=r"last.pt: missing, .* had ended; restore it from a copy"):
        train(resumed(out), out, resume=True)
    assert (out / "checkpoints/best.pt").read_bytes() == best
    # As a kill before the first checkpoint leaves it.
    (out / SUMMARY_JSON).unlink()
    train(resumed(out), out, resume=True)
    assert "stopped before its first checkpoint, and starts again" in caplog.text


OPEN = ("train.precision=null", "train.channels_last=null", "train.compile=null")


def forbid_measuring(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(autotune, "fastest_variant", refuse)
    patch.setattr(autotune, "faster_compiled", refuse)
    patch.setattr(measure, "compare", refuse)


def test_what_was_measured_is_not_measured_again(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(make(*OPEN), out, 6, "interrupt")
    before = json.loads((out / SUMMARY_JSON).read_text())["accelerators"]
    settled = resumed(out)
    assert None not in (settled.train.precision, settled.train.channels_last, settled.train.compile)
    with pytest.MonkeyPatch.context() as patch:
        forbid_measuring(patch)
        summary = train(settled, out, resume=True)
    assert summary["accelerators"] == before  # with the measurements that were the reasons
    assert "set in the configuration" not in json.dumps(before)
    assert resumed(out) == settled


def test_measuring_does_not_change_the_training(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Steps with dropout are tried before the run, or not if the settings are given: the draws after are the same."""
    measured, given = tmp_path / "measured", tmp_path / "given"
    train(make(*OPEN), measured)
    (tmp_path / "settled.yaml").write_text((measured / RUN_YAML).read_text())
    with pytest.MonkeyPatch.context() as patch:
        forbid_measuring(patch)
        train(resumed(measured), given)
    assert_same_run(measured, given)


def test_settings_that_change_are_told_and_recorded(
    half: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    shutil.copytree(half, out)
    rate = resumed(out).train.learning_rate
    train(resumed(out, "train.learning_rate=0.5", "train.steps=6"), out, resume=True)
    results = [record.getMessage() for record in caplog.records]
    assert results == [
        f"{out}: from step 5 on, train.steps changes from 14 to 6: the schedule is stretched or shortened to that many "
        "steps",
        f"{out}: from step 5 on, train.learning_rate changes from {rate} to 0.5: it is the peak of the schedule, which "
        "keeps its shape",
    ]
    changed = {"train.steps": [14, 6], "train.learning_rate": [rate, 0.5]}
    assert metrics(out, "resumed") == [{"kind": "resumed", "step": 5, "changed": changed}]
    assert any("train.learning_rate" in note for note in read_run(out).notes)


def test_a_run_keeps_the_digest_of_its_chain_and_another_chain_has_its_own() -> None:
    chain = "augment.chain=/one.py:mine"
    before = load_run(None, [chain, "augment.digest=abc"])
    config, changes = resumed_run(before, load_run(None, [chain]))
    assert (config, changes) == (before, {})
    config, changes = resumed_run(before, load_run(None, [chain, "augment.digest=def"]))
    assert changes == {"augment.digest": ("abc", "def")}
    for also in ([], ["augment.digest=abc"]):  # as run.yaml has it
        config, changes = resumed_run(before, load_run(None, ["augment.chain=/two.py:mine", *also]))
        assert config.augment.digest is None
        assert changes == {"augment.chain": ("/one.py:mine", "/two.py:mine")}
    config, changes = resumed_run(before, load_run(None, ["augment.preset=nnunet"]))
    assert config.augment.digest is None


def test_a_resume_without_changes_keeps_settings_plan_and_time_and_sweeps_up(
    half: Path, make: Callable[..., RunConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also from the settings that it was begun with: what they leave open stays as the run has it."""
    out = tmp_path / "run"
    shutil.copytree(half, out)
    before, plan = (out / RUN_YAML).read_text(), (out / PLAN_JSON).read_bytes()
    spent = checkpoint(out, "last")["extra"]["spent"]
    elapsed = spent["seconds"]["total"]
    (out / CHECKPOINTS / ".last.pt.abc123").write_bytes(b"half")
    summary = train(make(), out, resume=True)
    assert caplog.messages == []
    assert metrics(out, "resumed") == []
    assert (out / RUN_YAML).read_text() == before
    assert (out / PLAN_JSON).read_bytes() == plan
    assert {path.name for path in (out / CHECKPOINTS).iterdir()} == {"best.pt", "last.pt"}
    assert summary["earlier_seconds"] == elapsed > 0
    seconds, before = summary["seconds"], spent["seconds"]
    assert all(seconds[name] > before[name] > 0 for name in ("total", "import", "train", "validate", "wait_for_data"))
    parts = sum(value for name, value in seconds.items() if name != "total")
    assert parts <= seconds["total"]
    trained_s = seconds["train"] + seconds["wait_for_data"]
    assert summary["wait_share"] == pytest.approx(seconds["wait_for_data"] / trained_s)
    assert summary["samples_per_s"] == pytest.approx(summary["steps"] * 3 / trained_s)
    run = read_run(out)
    assert (run.wait_share, run.total_s) == (summary["wait_share"], seconds["total"])
    assert step_seconds(run) == pytest.approx(trained_s / summary["steps"])
    times = [json.loads(line)["time_s"] for line in (out / METRICS_JSONL).read_text().splitlines()]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert elapsed < next(record["time_s"] for record in metrics(out, "train") if record["step"] > 5)


def test_changes_of_a_complete_run_are_refused(
    whole: Callable[[tuple[str, ...]], Path], caplog: pytest.LogCaptureFixture
) -> None:
    out = whole(FP32)
    before = contents(out)
    message = r"complete; train\.learning_rate=0\.5 .*--out, or raise train\.steps"
    with pytest.raises(ValueError, match=message):
        train(resumed(out, "train.learning_rate=0.5", "observe.monitor_every=5"), out, resume=True)
    assert train(resumed(out, "observe.monitor_every=5"), out, resume=True)["status"] == "finished"
    assert caplog.messages == [f"{out}: the run is complete; nothing is left to train"]
    assert contents(out) == before
