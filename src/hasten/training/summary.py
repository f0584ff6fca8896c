"""Results of a run for the report: summary.json and example slices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.regions import paint
from hasten.checkpoint.file import read_checkpoint
from hasten.config.patterns import first_few
from hasten.evaluation.dice import counts_of, dice_of, without_ignored
from hasten.evaluation.examples import EXAMPLES, chosen_cases, to_example
from hasten.observe.env import environment
from hasten.observe.rundir import BEST_PT, CHECKPOINTS, SUMMARY_JSON, write_json
from hasten.prediction.infer import Inference, infer_labels
from hasten.training.components import LoopComponents, RunComponents
from hasten.training.loop import Loop

_PARTS = ("import", "read_plan", "prepare", "tune", "compile", "train", "wait_for_data", "validate", "checkpoint")
"""Entries that the seconds of every summary have behind the total, in this order."""
_FEW_STEPS = 50
"""A run of fewer steps has hardly begun to learn."""
_NEAR_0 = 0.05
"""A Dice or IoU below this says that nothing was learned."""


def write_summary(out: Path, loop: Loop, about: Mapping[str, Any], *, metric: str) -> dict[str, Any]:
    """Write summary.json. Its seconds do not overlap, and include those of the run's earlier processes.

    loop: one that has run. about: what a run of this kind says more; metric: the name of what `train.target` and the
    best weights go by.
    """
    components, spent = loop.components, loop.spent()
    seconds = {"total": 0.0, **dict.fromkeys(_PARTS, 0.0), **spent.seconds}
    best = None if math.isnan(loop.best.value) else loop.best.value
    summary = {
        "status": loop.status,
        "target": {
            "metric": metric,
            "value": components.train.target,
            "reached": loop.target_time_s is not None,
            "time_s": loop.target_time_s,
        },
        "best": {"metric": metric, "value": best, "step": loop.best.step},
        "seconds": seconds,
        "earlier_seconds": loop.earlier.total_s,
        "doubts": _doubts(loop, components, best, metric),
        "steps": loop.done,
        # More than were made where the time limit paced the schedule.
        "position": components.paced.position(loop.done),
        "samples_per_s": spent.samples_per_s,
        "skipped_updates": int(components.step.update.skipped),
        "wait_share": spent.wait_share,
        "accelerators": {name: asdict(each) for name, each in loop.accelerators.items()},
        **about,
        "world": {"size": loop.world.size, "strategy": components.step.strategy.name},
        "environment": environment(),
    }
    write_json(out / SUMMARY_JSON, summary)
    return summary


def _doubts(loop: Loop, components: LoopComponents, best: float | None, metric: str) -> list[str]:
    """Why this run may be no good, and what to do, a sentence each."""
    if loop.status == "interrupted":
        return []
    train, doubts = components.train, list[str]()
    more = "more steps (train.steps)" if train.budget is None else "more time (train.budget)"
    if loop.done < _FEW_STEPS:
        doubts.append(f"{loop.done} steps are too few to learn from: give the run {more}")
    if best is not None and best < _NEAR_0 and metric != "mean_auc":
        name = metric.removeprefix("mean_").replace("dice", "Dice").replace("iou", "IoU")
        doubts.append(
            f"the best {name} is {best:.2f}, so the network finds next to nothing: give the run {more}; where that "
            "does not help, look at the report's slices for labels that do not lie on their images"
        )
        return doubts
    per_class = {} if loop.last is None else loop.last.record().get("dice_per_class", {})
    if missed := [name for name, dice in per_class.items() if dice < _NEAR_0]:
        doubts.append(f"next to nothing of {first_few(missed)} is found: give the run {more}, or finer voxels")
    return doubts


def write_examples(out: Path, components: RunComponents, loop: Loop, inference: Inference) -> None:
    """Slices of the worst, the median and the best validation case, predicted by the best weights (examples.npz).

    The network that was validated last is left with these weights. What the label ignores is background in both.
    """
    planned, arena, network = components.planned, components.arena, loop.validated_network
    best, by_id = out / CHECKPOINTS / BEST_PT, {case.id: case for case in planned.validation}
    if loop.last is None or not best.exists():
        return
    chosen = chosen_cases(dict(zip(by_id, loop.last.per_case, strict=True)))
    if not chosen:
        return
    network.load_state_dict(read_checkpoint(best)["weights"])
    network.eval()
    cases = arena.index(tuple(chosen))
    images = [arena.image(case) for case in cases]
    content: dict[str, Any] = {}
    for number, prediction in infer_labels(network, images, inference):
        label = arena.label(cases[number]).cpu()
        prediction, label = without_ignored(prediction.cpu(), label, planned.ignore_index)
        counts = counts_of(prediction, label, num_classes=arena.num_classes, regions=planned.members)
        painted = paint(prediction.numpy(), planned.regions) if planned.regions else prediction.numpy()
        name = tuple(chosen)[number]
        example = to_example(
            by_id[name],
            images[number].cpu().numpy(),
            label.numpy(),
            painted.astype(np.uint8),
            arena.geometry[cases[number]],
            which=chosen[name],
            dice=dice_of(counts[None], planned.class_names).mean,
        )
        content |= {f"{field}_{number}": value for field, value in asdict(example).items()}
    np.savez_compressed(out / EXAMPLES, **content)
