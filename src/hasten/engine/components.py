"""The components of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hasten.augment.program import Program
from hasten.cache.arena import Arena
from hasten.engine.capture import CapturedStep
from hasten.engine.infer import Inference
from hasten.engine.job import Planned
from hasten.engine.measure import Engaged
from hasten.engine.step import TrainStep
from hasten.optim.schedule import PacedSchedule


@dataclass(frozen=True, kw_only=True, slots=True)
class RunComponents:
    """The components that the training loop uses."""

    planned: Planned
    """The plan with all measured settings filled in, so that its configuration repeats this run."""
    arena: Arena
    step: TrainStep
    program: Program
    captured: CapturedStep | None
    """The step and its batch as one CUDA graph, where that is possible and not switched off."""
    inference: Inference
    engaged: dict[str, Engaged]

    paced: PacedSchedule
    """The schedule of the step's updates: the learning rate of each 0-based step."""
    start: dict[str, Any] | None = None
    """Where the weights come from that the run starts from, if they were loaded; as weights.json has it."""

    @property
    def validated(self) -> nn.Module:
        """The module that validation and prediction use: the average, or the weights where none is kept."""
        update = self.step.update
        return update.average if update.average is not None else update.weights
