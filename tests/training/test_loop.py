"""What a run does besides its steps: validating beside them, keeping checkpoints, hearing signals, leaving some out."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.config.schema import RunConfig
from hasten.observe.rundir import SUMMARY_JSON
from hasten.training.run import train
from hasten.training.step import TrainStep
from hasten.training.stop import Stopped
from tests.training.runs import assert_same_run, checkpoint, metrics, resumed

SLOW_SIGNALS = [pytest.param(*each, marks=pytest.mark.slow) for each in ((signal.SIGUSR1, 75), (signal.SIGINT, 130))]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), *SLOW_SIGNALS])
def test_a_signal_ends_the_run_at_the_steps_end_and_it_goes_on_as_if_nothing_had_been(
    make: Callable[..., RunConfig],
    finished: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
) -> None:
    out = tmp_path / "run"
    plain = TrainStep.__call__

    def call(self: TrainStep, image: Tensor, label: Tensor, index: int) -> Tensor:
        if index == 5:
            os.kill(os.getpid(), number)
        return plain(self, image, label, index)

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", call)
        with pytest.raises(Stopped, match="stopped at step 6") as stop:
            train(make(), out)
    assert stop.value.exit_code == code
    assert json.loads((out / SUMMARY_JSON).read_text())["status"] == "interrupted"
    assert checkpoint(out, "last")["step"] == 6
    train(resumed(out), out, resume=True)
    assert_same_run(out, finished[0])


STAGES = ("sample.stages=[[0.5,0.5]]", "sample.patch=[16,16,16]")


SLOW_WAYS = [
    pytest.param(*each, marks=pytest.mark.slow)
    for each in ((("train.optimizer=lamb",), 7), (STAGES, 6), (("train.activations=200KB",), 7))
]


@pytest.mark.parametrize(("overrides", "step"), [(("train.accumulate=2",), 7), (STAGES, 9), *SLOW_WAYS], ids=str)
def test_other_ways_to_train_resume_too(
    make: Callable[..., RunConfig], tmp_path: Path, overrides: tuple[str, ...], step: int
) -> None:
    from tests.training.runs import at_step

    whole, out = tmp_path / "whole", tmp_path / "run"
    train(make(*overrides), whole)
    with at_step(step, "interrupt"), pytest.raises(Stopped):
        train(make(*overrides), out)
    train(resumed(out), out, resume=True)
    assert_same_run(out, whole)


def test_the_largest_batch_is_taken_once_and_its_rate_is_scaled(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hasten.runtime import batch_size
    from hasten.training import compose
    from hasten.training.choose import autotune

    out = tmp_path / "run"
    with pytest.raises(ValueError, match=r"sample\.fit_batch: searches a GPU's memory"):
        train(make("sample.fit_batch=true", "train.steps=4"), out)
    # On the host in place of a GPU.
    monkeypatch.setattr(compose, "rank_mistakes", lambda planned, strategy: [])
    monkeypatch.setattr(batch_size, "_reserve_memory", lambda *_: torch.empty(0))
    monkeypatch.setattr(autotune, "find_batch_size_for", partial(batch_size.find_batch_size_for, highest=6))
    summary = train(make("sample.fit_batch=true", "train.steps=4"), out)
    assert summary["accelerators"]["largest batch"]["reason"].startswith("6 patches instead of 3: ")
    settled = resumed(out)
    assert (settled.sample.batch_size, settled.sample.fit_batch, settled.train.learning_rate_batch) == (6, False, 3)
    assert settled.train.learning_rate is not None
    # One cycle's first step: a 25th of the peak, which is twice what was planned for three patches.
    assert metrics(out, "train")[0]["lr"] == pytest.approx(2 * settled.train.learning_rate / 25)
