"""`metrics.jsonl`: what a run recorded while it ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hasten.observe.monitor.recording import Follower
from hasten.observe.values import integer, number, numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRecord:
    step: int
    time_s: float
    loss: float | None
    samples_per_s: float | None
    wait_share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationRecord:
    step: int
    time_s: float
    score: float
    """Mean of the run's metric."""
    per_class: dict[str, float]
    """Mean of each class, or region, over the cases that hold it."""


def read_metrics(
    path: Path, notes: list[str], metric: str
) -> tuple[tuple[TrainRecord, ...], tuple[ValidationRecord, ...]]:
    """All records, of one clock. metric: `dice` or `iou`, what is taken of a validation."""
    if not path.is_file():
        notes.append("metrics.jsonl is missing: there are no curves.")
    file = Follower(path)
    lines = [*file.poll(), *file.finish()]
    if file.damaged:
        notes.append(f"metrics.jsonl: {file.damaged} of {file.damaged + len(lines)} lines cannot be read.")
    train: list[TrainRecord] = []
    validations: list[ValidationRecord] = []
    unusable = 0
    for line in lines:
        kind, step, time_s = line.get("kind"), integer(line.get("step")), number(line.get("time_s"))
        if kind == "resumed" and isinstance(line.get("changed"), dict):
            changed = ", ".join(f"{name} {json.dumps(values)}" for name, values in line["changed"].items())
            notes.append(f"From step {step} on, the run went on with other settings [before, after]: {changed}.")
        if kind not in ("train", "validation"):
            continue
        score = number(line.get(metric))
        if step is None or time_s is None or (kind == "validation" and score is None):
            unusable += 1
            continue
        if score is not None and kind == "validation":
            per_class = numbers(line.get(f"{metric}_per_class"))
            validations.append(ValidationRecord(step=step, time_s=time_s, score=score, per_class=per_class))
        else:
            values = {name: number(line.get(name)) for name in ("loss", "samples_per_s", "wait_share")}
            train.append(TrainRecord(step=step, time_s=time_s, **values))
    if unusable:
        notes.append(f"metrics.jsonl: {unusable} of {len(lines)} records lack a finite step, time_s or {metric}.")
    return tuple(train), tuple(validations)
