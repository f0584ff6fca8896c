"""The outcome of a run: its best validation, how it ended, and the model file that predictions read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hasten.config.load import to_dict
from hasten.engine.checkpoint import read_checkpoint
from hasten.engine.job import Planned
from hasten.engine.metric import Dice, Metric
from hasten.engine.spacing import training_spacing


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The best validation so far; step 0 and nan before the first."""

    value: float
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    status: str
    """`finished`, `target_reached`, `time_up` or `interrupted`."""
    step: int
    best: Best
    target_time_s: float | None
    last: Dice | None
    wait_seconds: float
    samples_per_s: float
    elapsed: float
    """Seconds of the processes before this one, if the run was resumed."""
    position: float
    """Steps of the schedule that were passed through: more than were made where the time limit paced it."""
    skipped: int
    """Updates skipped because their gradient was not finite."""
    validate_beside: float
    """Seconds of validations that ran beside the training."""


def model_content(planned: Planned, network: nn.Module, dice: Dice | None, step: int) -> dict[str, Any]:
    """What a prediction needs: the validated weights and everything to rebuild their network and its input.

    dice: of their validation; None where it was given up.
    """
    case_set = planned.case_set
    return {
        "weights": network.state_dict(),
        "config": to_dict(planned.config),
        "labels": {str(value): name for value, name in case_set.labels.items()},
        "regions": {name: list(members) for name, members in case_set.regions.items()},
        "region_values": dict(case_set.region_values),
        "channels": list(case_set.channels),
        "spatial_dims": case_set.spatial_dims,
        "foreground": dict(planned.foreground),
        "spacing": training_spacing(planned.fingerprint.spacings),
        "step": step,
        "dice": dice.mean if dice is not None else math.nan,
        "iou": dice.iou if dice is not None else math.nan,
    }


def best_on_disk(path: Path, metric: Metric) -> Best:
    """What best.pt holds. It may be later than last.pt, and a file that can't be read is to be written anew."""
    try:
        content = read_checkpoint(path)
    except ValueError:
        return Best(value=math.nan, step=0)
    return Best(value=content.get(metric, math.nan), step=content["step"])
