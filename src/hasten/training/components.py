"""The components of a training run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from hasten.augment.program import Program
from hasten.cache.arena import Arena
from hasten.checkpoint.file import read_checkpoint
from hasten.config.decision import Accelerators
from hasten.config.schema import ObserveConfig
from hasten.config.settled import PlannedTrain
from hasten.optim.schedule import PacedSchedule
from hasten.prediction.infer import Inference
from hasten.training.capture import CapturedStep
from hasten.training.plan import RunPlan
from hasten.training.step import TrainStep


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopComponents:
    """What the training loop needs, for any kind of batch."""

    settings: dict[str, Any]
    """Settings of the whole run, as in run.yaml, for the trackers."""
    train: PlannedTrain
    observe: ObserveConfig
    timeout_s: float
    """Seconds that a rank waits for the others in a step."""
    step: TrainStep
    program: Program
    """The source of batches."""
    captured: CapturedStep | None = None
    """The step and its batch as one CUDA graph, where that is possible and not switched off."""
    accelerators: Accelerators
    """Accelerators that were chosen while the run was assembled."""
    paced: PacedSchedule
    """The schedule of the step's updates: the learning rate of each 0-based step."""

    @property
    def validated(self) -> nn.Module:
        """The module that validation and prediction use: the average, or the weights where none is kept."""
        update = self.step.update
        return update.average if update.average is not None else update.weights


@dataclass(frozen=True, kw_only=True, slots=True)
class RunComponents(LoopComponents):
    """The components of a segmentation run."""

    planned: RunPlan
    """The plan with all measured settings filled in, so that its configuration repeats this run."""
    arena: Arena
    inference: Inference
    start: dict[str, Any] | None = None
    """Source of the initial weights if they were loaded; the content of weights.json."""


class ValidationScore(Protocol):
    """The result of a validation."""

    def value(self, metric: str) -> float:
        """The value of a metric, the higher the better."""

    def record(self) -> dict[str, Any]:
        """The fields of its line in metrics.jsonl."""


class Evaluator(Protocol):
    """Validates a network on held-out data."""

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best weights."""

    @property
    def accelerators(self) -> Accelerators:
        """How validations are shared among ranks, and shortened."""

    @property
    def covers(self) -> object:
        """What a validation covers: scores are compared only where it is the same."""

    @property
    def repeated(self) -> float:
        """Time of the inference that follows the last validation, such as the report's examples, in validations."""

    def __call__(self, network: nn.Module, *, room: Callable[[], float] = ...) -> ValidationScore:
        """network: as it is trained, but not compiled. room: seconds that are left; the score is then of what fits."""

    def fit(self, network: nn.Module, seconds: float) -> float:
        """Shorten all validations to these seconds as far as possible; returns what one is expected to take."""

    def content(self, network: nn.Module, score: Any, step: int) -> dict[str, Any]:
        """What best.pt holds. score: of these weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The best validation so far; step 0 and nan before the first."""

    value: float = math.nan
    step: int = 0


def best_on_disk(path: Path, metric: str) -> Best:
    """The best validation according to best.pt, which may be later than last.pt; step 0 if the file can't be read."""
    try:
        content = read_checkpoint(path)
    except ValueError:
        return Best()
    return Best(value=content.get(metric, math.nan), step=content["step"])
