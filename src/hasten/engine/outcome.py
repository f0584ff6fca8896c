"""The outcome of a run: its best validation and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.engine.checkpoint import read_checkpoint


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
    last: Any
    """What the evaluator gave last, if anything."""
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


def best_on_disk(path: Path, metric: str) -> Best:
    """What best.pt holds. It may be later than last.pt, and a file that can't be read is to be written anew."""
    try:
        content = read_checkpoint(path)
    except ValueError:
        return Best(value=math.nan, step=0)
    return Best(value=content.get(metric, math.nan), step=content["step"])
