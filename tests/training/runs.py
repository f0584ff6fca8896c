"""Tiny runs, ways to stop them, and what two of them must have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.checkpoint.file import read_checkpoint
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import CHECKPOINTS, METRICS_JSONL, RUN_YAML, read_jsonl
from hasten.training.step import TrainStep

SETTINGS = (
    "sample.patch=[16,16,16]",
    "sample.batch_size=3",  # 4 cases are trained on: an epoch ends within a batch
    "network.channels=[4,8]",
    "network.strides=[[2,2,2]]",
    "network.num_res_units=1",
    "network.dropout=0.1",
    "data.split.fraction=0.34",
    "train.steps=14",
    "train.validate_every=4",
    "train.checkpoint_every=4",
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "train.device=cpu",
)


def config_of(source: Path, cache: Path, *overrides: str) -> RunConfig:
    return load_run(None, (f"data.source={source}", f"cache.dir={cache}", *SETTINGS, *overrides))


def resumed(out: Path, *overrides: str) -> RunConfig:
    """What `hasten train --resume` takes the settings from."""
    return load_run(out / RUN_YAML, overrides)


def metrics(out: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(out / METRICS_JSONL) if record["kind"] == kind]


def checkpoint(out: Path, name: str) -> dict[str, Any]:
    return read_checkpoint(out / CHECKPOINTS / f"{name}.pt")


def assert_equal(left: Any, right: Any, at: str = "") -> None:
    """Bit for bit, through containers. Times are left out."""
    assert type(left) is type(right), at
    if isinstance(left, Tensor):
        assert left.dtype == right.dtype, at
        assert left.stride() == right.stride(), at
        # As bytes: nan equals nan, and 0 does not equal -0.
        one, other = (side.contiguous().reshape(-1).view(torch.uint8) for side in (left, right))
        assert torch.equal(one, other), at
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), at
        for key in left.keys() - {"spent"}:
            assert_equal(left[key], right[key], f"{at}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), at
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(one, other, f"{at}[{place}]")
    else:
        assert left == right, at


def assert_same_run(left: Path, right: Path) -> None:
    """Every tensor and number of both checkpoints, and what the metrics say of the training."""
    assert_equal(checkpoint(left, "last"), checkpoint(right, "last"), "last")
    assert_equal(checkpoint(left, "best"), checkpoint(right, "best"), "best")
    for kind, columns in (("train", ("step", "loss", "lr")), ("validation", ("step", "dice", "dice_per_class"))):
        one, other = ([[line[name] for name in columns] for line in metrics(run, kind)] for run in (left, right))
        assert one == other, kind
        assert one, kind


class Killed(BaseException):
    """Stands for a SIGKILL: nothing that follows the step is done."""


@contextmanager
def at_step(number: int, what: str) -> Iterator[None]:
    """During the 1-based step of that number: `interrupt` (a Ctrl-C), `kill`, or `nan` (the loss from then on)."""
    plain = TrainStep.__call__

    def call(self: TrainStep, image: Tensor, label: Tensor, index: int) -> Tensor:
        loss = plain(self, image, label, index)
        if what == "nan" and index + 1 >= number:
            with torch.no_grad():
                next(self.update.weights.parameters()).fill_(float("nan"))
            return loss * float("nan")
        if index + 1 == number:
            if what == "kill":
                raise Killed
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", call)
        yield
