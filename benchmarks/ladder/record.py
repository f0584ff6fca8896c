"""What every arm shares: its flags, its score, its clock and the result file.

Dice: 2 |P & L| / (|P| + |L|) per case and class, on prepared voxels (for CT: resampled and cropped), of the label map
after argmax, or of each region's mask where classes overlap. A class that the case's label lacks is left out (nan),
which is what MONAI's DiceMetric does. The mean averages a case's classes first, then the cases. IoU likewise, of
IoU = Dice / (2 - Dice) per case and class.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ladder.task import Task, read_task
from benchmarks.machine import hardware, versions
from hasten.observe.clock import process_start_seconds
from hasten.observe.cores import usable_cores
from hasten.observe.rundir import write_json

if TYPE_CHECKING:
    from torch import Tensor

PHASES = ("import", "cache", "train", "wait", "validate")
"""Parts of a run's seconds that do not overlap. `wait`: the loop stood still for its next batch."""
Scores = Sequence[Sequence[float]]
"""Dice of each case (rows) and class (columns); nan where the case's label lacks the class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmArguments:
    """The flags that every arm takes."""

    task: Task
    out: Path
    """Result file, written after every validation."""
    seed: int = 0
    target: float
    """Of `task.metric`; the task's own where no flag says another."""
    max_seconds: float
    """Stop then, counted from process start."""
    max_epochs: int | None = None
    threads: int
    """Of torch."""
    workers: int
    """Threads that fill a cache, or processes of a loader."""
    device: str = "auto"


def arm_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", type=Path, required=True, help="the job, as the ladder writes it")
    parser.add_argument("--out", type=Path, required=True, help="result file (JSON), written after every validation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, help="stop at this value of the task's metric; default: the task's")
    parser.add_argument("--max-seconds", type=float, default=500.0, help="stop then, counted from process start")
    parser.add_argument("--max-epochs", type=int, help="stop after this many epochs")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="torch threads")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="cache threads or loader processes")
    parser.add_argument("--device", default="auto")
    return parser


def arm_arguments(description: str, argv: Sequence[str] | None = None) -> ArmArguments:
    """Parse an arm's flags and read its task. Raises ValueError for a task file that is none."""
    return to_arguments(arm_parser(description).parse_args(argv))


def to_arguments(given: argparse.Namespace) -> ArmArguments:
    """Of the flags that `arm_parser` knows; an arm with more flags parses for itself and reads those there."""
    task = read_task(given.task)
    flags = {each.name: getattr(given, each.name) for each in fields(ArmArguments)}
    return ArmArguments(**flags | {"task": task, "target": task.target if given.target is None else given.target})


# Scores


def class_masks(labels: Tensor, task: Task) -> Tensor:
    """(K, ...) bool, one mask for each of `task.class_names`, of a label map (...) of class index."""
    import torch

    known = sorted(task.labels)
    if task.regions:
        wanted = [tuple(known.index(value) for value in members) for members in task.regions.values()]
        return torch.stack([torch.isin(labels, torch.tensor(list(each), device=labels.device)) for each in wanted])
    return torch.stack([labels == number for number in range(1, len(known))])


def case_scores(predicted: Tensor, labelled: Tensor) -> list[float]:
    """Dice of each class of one case, from two masks (K, ...) bool; nan where the label lacks the class."""
    assert predicted.shape == labelled.shape
    scores = []
    for p, l in zip(predicted, labelled, strict=True):  # noqa: E741
        size = int(l.sum())
        scores.append(2 * int((p & l).sum()) / (int(p.sum()) + size) if size else math.nan)
    return scores


def iou_of(dice: float) -> float:
    return dice / (2 - dice)


def mean_score(scores: Scores) -> tuple[float, list[float]]:
    """Mean over a case's classes, then the cases; and the mean of each class over the cases."""
    return _mean([_mean(row) for row in scores]), [_mean(column) for column in zip(*scores, strict=True)]


def _mean(values: Sequence[float]) -> float:
    present = [value for value in values if not math.isnan(value)]
    return sum(present) / len(present) if present else math.nan


# Results


@dataclass(kw_only=True)
class Record:
    """What one run of an arm found. Its file is begun with it, and `write` may be called at any time."""

    arm: str
    given: ArmArguments
    notes: str
    """What the arm does, in words; its module's docstring."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    curve: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Seconds of each whole epoch, without its validation. An epoch is `task.patches_per_epoch` patches."""
    steps: int = 0
    stopped: str | None = None
    """target, max_seconds, max_epochs, schedule or interrupted; None while it runs."""
    engaged: dict[str, Any] = field(default_factory=dict)
    """Accelerators that were on, and why, where the arm decides that for itself."""
    settled: dict[str, Any] = field(default_factory=dict)
    """Settings that the arm chose, for the reader."""
    utilisation: dict[str, float] = field(default_factory=dict)
    """`cpu`: percent of all cores, `gpu`: percent of the time with a kernel; means from the first step to the end."""

    def __post_init__(self) -> None:
        self.write()  # so that a run that is ended before its first validation counts with the time it had

    def validated(self, epoch: float, scores: Scores, **figures: float) -> float:
        """Add a point to the curve, write the file and print a line; `figures` are kept and printed with the point.

        Returns the mean of the task's metric. Set `stopped` before, so that the file says it with the last point.
        """
        point = self.add(process_start_seconds(), epoch, scores, **figures)
        if point >= self.given.target:
            self.stopped = "target"
        self.write()
        last = self.curve[-1]
        said = "".join(f"  {name} {value:.4g}" for name, value in figures.items())
        print(
            f"{self.arm} {last['seconds']:7.1f} s  step {self.steps:5d}  {self.given.task.metric} {point:.4f}{said}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return point

    def add(self, seconds: float, epoch: float, scores: Scores, **figures: float) -> float:
        """Add a point at `seconds` from process start; returns the mean of the task's metric."""
        dice, per_class = mean_score(scores)
        iou, _ = mean_score([[iou_of(value) for value in row] for row in scores])
        self.curve.append(
            {
                "seconds": round(seconds, 3),
                "step": self.steps,
                "epoch": epoch,
                "dice": _number(dice),
                "iou": _number(iou),
                "per_class": [_number(value) for value in per_class],
                **{name: _number(value) for name, value in figures.items()},
            }
        )
        return dice if self.given.task.metric == "dice" else iou

    def best(self) -> float | None:
        """Best mean of the task's metric so far."""
        values = (point[self.given.task.metric] for point in self.curve)
        return max((value for value in values if value is not None), default=None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure utilisation while the block runs, from the first step on, by the monitor that runs have too."""
        from hasten.observe.monitor import Monitor

        taken: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            gpus: tuple[()] | None = () if self.given.device == "cpu" else None
            with Monitor(Path(folder), steps=lambda: self.steps, gpus=gpus, send=taken.append, tell=_nobody):
                yield
        self.utilisation = mean_use(taken)
        self.write()

    def write(self) -> None:
        given, task = self.given, self.given.task
        result = {
            "arm": self.arm,
            "task": task.name,
            "seed": given.seed,
            "notes": self.notes,
            "settings": {
                "target": given.target,
                "metric": task.metric,
                "max_seconds": given.max_seconds,
                "max_epochs": given.max_epochs,
                "threads": given.threads,
                "workers": given.workers,
                "device": given.device,
                **self.settled,
            },
            "cases": {"train": len(task.train), "validation": len(task.validation)},
            "classes": list(task.class_names),
            "curve": self.curve,
            "best": self.best(),
            "seconds": {
                key: round(value, 3) for key, value in {**self.seconds, "total": process_start_seconds()}.items()
            },
            "steps": self.steps,
            "seconds_per_epoch": self.epochs,
            "stopped": self.stopped,
            "engaged": self.engaged,
            "utilisation": self.utilisation,
            "hardware": hardware(),
            "versions": versions(),
        }
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.out, result)


def mean_use(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean use of the processors, and of the GPUs if there are any, over samples of the monitor from the first step."""
    training = [sample for sample in samples if sample.get("step")]
    results = {"cpu": [sample["host"]["cpu"] for sample in training if "cpu" in sample.get("host", {})]}
    results["gpu"] = [gpu["util"] for sample in training for gpu in sample.get("gpus", ()) if "util" in gpu]
    return {name: round(sum(values) / len(values), 1) for name, values in results.items() if values}


def _nobody(text: str) -> None:
    """The monitor's remarks are not the arm's."""


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)
