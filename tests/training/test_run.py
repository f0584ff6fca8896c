from __future__ import annotations

import dataclasses
import errno
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.checkpoint import file as checkpoint_module
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.config.settled import undecided
from hasten.evaluation.dice import Dice
from hasten.kernels import use
from hasten.observe.rundir import (
    CHECKPOINTS,
    ENV_JSON,
    METRICS_JSONL,
    PLAN_JSON,
    RUN_YAML,
    SUMMARY_JSON,
)
from hasten.training import compose, loop, run
from hasten.training.choose.budget import make_plan
from hasten.training.run import train
from hasten.training.time_limit import TimeLimit
from hasten.training.validate import CaseEvaluator, Rates
from tests.training.runs import assert_equal, assert_same_run, at_step, checkpoint, metrics


def test_the_run_directory_is_whole(finished: tuple[Path, dict[str, Any]], make: Callable[..., RunConfig]) -> None:
    out, _ = finished
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    tracked = {name for name in files if name.startswith("tensorboard/")}
    assert len(tracked) == 1
    assert files - tracked == {
        "monitor.jsonl",
        RUN_YAML,
        PLAN_JSON,
        ENV_JSON,
        METRICS_JSONL,
        SUMMARY_JSON,
        "examples.npz",
        f"{CHECKPOINTS}/best.pt",
        f"{CHECKPOINTS}/last.pt",
    }
    for name in (PLAN_JSON, ENV_JSON, SUMMARY_JSON):
        assert json.loads((out / name).read_text())
    settled = load_run(out / RUN_YAML)
    wanted = dataclasses.replace(make().train, learning_rate=settled.train.learning_rate, capture=False)
    assert settled.train == wanted
    assert undecided(settled) == []
    assert None not in (settled.train.precision, settled.train.compile, settled.data.split.by)


def test_the_metrics_hold_every_step_and_validation(finished: tuple[Path, dict[str, Any]]) -> None:
    out, _ = finished
    assert [record["step"] for record in metrics(out, "train")] == list(range(1, 15))
    validations = metrics(out, "validation")
    assert [record["step"] for record in validations] == [4, 8, 12, 14]
    assert checkpoint(out, "last")["step"] == 14  # whatever the intervals
    assert all(list(record["dice_per_class"]) == ["spleen"] for record in validations)
    assert max(record["dice"] for record in validations) == checkpoint(out, "best")["dice"]


def test_the_summary(finished: tuple[Path, dict[str, Any]]) -> None:
    out, summary = finished
    assert json.loads((out / SUMMARY_JSON).read_text()) == summary
    assert summary["status"] == "finished"
    assert summary["steps"] == 14
    assert summary["target"] == {"metric": "mean_dice", "value": None, "reached": False, "time_s": None}
    best = checkpoint(out, "best")
    assert summary["best"] == {"metric": "mean_dice", "value": best["dice"], "step": best["step"]}
    assert summary["cases"] == {"train": 4, "validation": 2}
    assert summary["samples_per_s"] > 0
    assert 0 <= summary["wait_share"] <= 1
    assert summary["earlier_seconds"] == 0
    assert summary["environment"]["python"]
    assert len(summary["accelerators"]) >= 5
    for engaged in summary["accelerators"].values():
        assert isinstance(engaged["on"], bool)
        assert engaged["reason"]


def test_the_target_stops_the_run(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    summary = train(make("train.target=1e-9"), tmp_path / "run")
    assert summary["status"] == "target_reached"
    assert summary["steps"] == 4
    (record,) = metrics(tmp_path / "run", "validation")
    assert summary["target"] == {"metric": "mean_dice", "value": 1e-9, "reached": True, "time_s": record["time_s"]}
    assert checkpoint(tmp_path / "run", "last")["step"] == 4
    assert checkpoint(tmp_path / "run", "best")["step"] == 4


def a_second_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Loop, "time_s", lambda self: float(self.done))
    monkeypatch.setattr(loop.Loop, "trained_s", lambda self: float(self.done))


def test_a_run_with_a_time_limit_passes_through_its_whole_schedule(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_second_a_step(monkeypatch)
    config, out = make("train.steps=200", "train.validate_every=10", "train.budget=14"), tmp_path / "run"
    summary = train(config, out)
    assert summary["status"] == "time_up"
    assert summary["steps"] == checkpoint(out, "last")["step"] <= 14
    assert summary["position"] >= 199
    rates = [record["lr"] for record in metrics(out, "train")]
    peak = max(rates)
    assert rates[-1] < 0.1 * peak
    assert metrics(out, "validation")[-1]["step"] == summary["steps"]
    assert train(load_run(out / RUN_YAML), out, resume=True) == summary
    # The schedule is at its end, however much time a resumed run is given.
    with pytest.raises(ValueError, match=r"is complete; train.budget=1000.0 would change nothing"):
        train(load_run(out / RUN_YAML, ["train.budget=1000"]), out, resume=True)


def test_a_validation_that_does_not_fit_scores_the_cases_that_do(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One case, however little time is left: the last weights are scored and saved."""
    a_second_a_step(monkeypatch)
    monkeypatch.setattr(TimeLimit, "room", lambda self: -1.0 if self.over else 1.0)
    summary = train(make("train.steps=200", "train.validate_every=200", "train.budget=8"), tmp_path / "run")
    assert summary["status"] == "time_up"
    assert summary["best"]["step"] == summary["steps"] == checkpoint(tmp_path / "run", "best")["step"]
    assert 0 <= summary["best"]["value"] == checkpoint(tmp_path / "run", "best")["dice"] <= 1


def test_a_validation_that_takes_too_long_is_shortened_and_says_so(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mirror images, less overlap and fewer cases, at least one."""
    rates = Rates(network_s=1.0, grid_s=0.0)
    monkeypatch.setattr(CaseEvaluator, "_measured_rates", lambda self, network: rates)
    monkeypatch.setattr(TimeLimit, "_fitting", lambda self, step, trained: (None, step + 1))
    settings = ("train.steps=2", "train.budget=2000", "infer.flip_axes=[0]", "data.split.fraction=0.5")
    summary = train(make(*settings), tmp_path / "run")
    reason = summary["accelerators"]["shorter validation"]["reason"]
    assert reason.startswith("1 of 3 cases, no mirror images, windows that overlap by 0: ")
    assert 0 <= summary["best"]["value"] <= 1


def test_a_class_of_which_nothing_is_found_is_told(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, classes = CaseEvaluator.__call__, {"liver": 0.9, "cyst": 0.0, "absent": math.nan}

    def half(self: CaseEvaluator, network: torch.nn.Module, **given: Any) -> Dice:
        return dataclasses.replace(plain(self, network, **given), mean=0.45, per_class=classes)

    monkeypatch.setattr(CaseEvaluator, "__call__", half)
    *_, doubt = train(make(), tmp_path / "run")["doubts"]
    assert doubt.startswith("next to nothing of cyst is found: give the run more steps")


def test_the_best_weights_are_those_of_the_validations_that_cover_the_most(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, thought to take long, covers one case; by its time the others cover all."""
    rates = Rates(network_s=0.01, grid_s=0.0)
    monkeypatch.setattr(CaseEvaluator, "_measured_rates", lambda self, network: rates)
    monkeypatch.setattr(TimeLimit, "_fitting", lambda self, step, trained: (None, step + 1))
    config = make("train.steps=4", "train.validate_every=1", "train.budget=2000", "data.split.fraction=0.5")
    summary = train(config, tmp_path / "run")
    first, *others = metrics(tmp_path / "run", "validation")
    assert "shorter validation" not in summary["accelerators"]
    assert others
    assert summary["best"]["value"] == max(record["dice"] for record in others)
    assert summary["best"]["step"] > first["step"]


def test_a_time_limit_that_the_start_uses_up_is_an_error_and_leaves_nothing(
    make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    same = (f"cache.dir={tmp_path / 'cache'}", "prepare.spacing=[0,0,0]")
    train(make("train.steps=1", *same), tmp_path / "first")  # prepares the cases
    with pytest.raises(ValueError, match=r"train.budget=0.001s: no time is left to train"):
        train(make("train.budget=0.001", *same), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_preparing_cases_ends_with_the_time_limit_and_goes_on_later(
    make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    cache = f"cache.dir={tmp_path / 'cache'}"
    with pytest.raises(ValueError, match=r"^train.budget=0.01s: the time was up when 1 of 6.* or raise train.budget$"):
        train(make("train.budget=0.01s", cache), tmp_path / "run")
    assert train(make("train.steps=2", cache), tmp_path / "run")["status"] == "finished"


@pytest.mark.parametrize(("fused", "on"), [("null", True), ("true", True), ("false", False)])
def test_triton_is_off_for_a_run_that_asks_for_it_and_on_again_after(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: str, on: bool
) -> None:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(f"Triton: {use.triton_works(torch.device('cuda', 0))}")

    monkeypatch.setattr(use, "_works_on", lambda device: True)
    monkeypatch.setattr(compose, "compose_run", stop)
    config = make(f"train.fused_kernels={fused}")
    with pytest.raises(ValueError, match=f"Triton: {on}"):
        train(config, tmp_path / "run")
    assert use.triton_works(torch.device("cuda", 0))
    make_plan(config)
    assert use.triton_works(torch.device("cuda", 0))


def test_a_folder_with_files_is_refused_and_left_alone(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; add --resume"):
        train(make(), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", CHECKPOINTS}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_start_that_fails_late_leaves_nothing(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Even after run.yaml was written."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(run, "environment", fail)
    with pytest.raises(type(error)):
        train(make(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    make: Callable[..., RunConfig], finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    torch.manual_seed(99)
    train(make(), tmp_path / "same")
    assert_same_run(tmp_path / "same", finished[0])
    train(make("train.seed=1"), tmp_path / "other")
    losses = [[record["loss"] for record in metrics(out, "train")] for out in (finished[0], tmp_path / "other")]
    assert all(one != other for one, other in zip(*losses, strict=True))


def test_validation_uses_the_average(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    train(make("train.steps=4"), tmp_path / "run")
    last, best = checkpoint(tmp_path / "run", "last"), checkpoint(tmp_path / "run", "best")
    assert_equal(dict(best["weights"]), dict(last["average"]))
    assert not torch.equal(*(next(iter(part.values())) for part in (last["average"], last["network"])))


def test_without_an_average_validation_uses_the_weights_and_training_goes_on(
    make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """A validation puts the network itself into its mode for evaluation; dropout must be on again after it."""
    often, once = tmp_path / "often", tmp_path / "once"
    train(make("train.ema=0", "train.steps=4", "train.validate_every=1"), often)
    train(make("train.ema=0", "train.steps=4", "train.validate_every=4"), once)
    assert_equal(checkpoint(often, "last")["network"], checkpoint(once, "last")["network"])
    assert checkpoint(often, "last")["average"] is None


@pytest.mark.parametrize("logs", [pytest.param(200, marks=pytest.mark.slow), 1])
def test_a_loss_of_nan_ends_the_run_and_keeps_the_checkpoints(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: int
) -> None:
    """Also where the next log line is far behind the next checkpoint."""
    monkeypatch.setattr(loop, "_LOGS", logs)
    out = tmp_path / "run"
    with at_step(6, "nan"), pytest.raises(ValueError, match=r"nan at step \d: lower train\.learning_rate") as error:
        train(make(), out)
    assert "holds the last good state" in str(error.value)
    for name in ("best", "last"):
        assert checkpoint(out, name)["step"] == 4
    assert all(math.isfinite(float(value.sum())) for value in checkpoint(out, "last")["network"].values())
    assert train(load_run(out / RUN_YAML), out, resume=True)["status"] == "finished"


@pytest.mark.parametrize("often", ["validate", "checkpoint"])
def test_weights_of_nan_are_never_saved(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: str
) -> None:
    """Neither as the best nor as the last, before any log line has said that the loss is nan."""
    monkeypatch.setattr(loop, "_LOGS", 1)
    every = {"train.validate_every": 14, "train.checkpoint_every": 14, f"train.{often}_every": 4}
    with at_step(2, "nan"), pytest.raises(ValueError, match="norm of the weights is nan at step 4"):
        train(make(*(f"{name}={value}" for name, value in every.items())), tmp_path / "run")
    assert not any((tmp_path / "run" / CHECKPOINTS).iterdir())


def test_a_full_disk_says_how_to_go_on(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plain = tmp_path / "run", loop.write_checkpoint

    def full(path: Path, content: dict[str, Any]) -> None:
        if content["step"] == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_checkpoint", full)
        with pytest.raises(ValueError, match=r"No space left on device.*hasten train --resume --out"):
            train(make("train.checkpoint_every=2"), out)
    assert checkpoint_module.read_checkpoint(out / CHECKPOINTS / "last.pt")["step"] == 2
    assert train(load_run(out / RUN_YAML), out, resume=True)["status"] == "finished"
