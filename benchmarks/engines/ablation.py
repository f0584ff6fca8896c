"""Which recipe is best on the hippocampus: one part of it changed at a time, everything else as it is.

Every run is a process of its own from an empty cache (the ladder's top rung), with the same split, network and number
of steps; the arms take turns over the seeds. A learning rate is the best of three that were tried for that
optimizer with another seed than those reported.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ladder.climb import Attempt, run_one
from benchmarks.ladder.rungs import rungs_named
from benchmarks.tasks import NETWORK

ABOUT = __doc__
STEPS = 300
LEVEL = 0.85
BASE = (
    f"train.steps={STEPS}", "train.validate_every=25", "train.learning_rate=0.01", "sample.flip_prob=[0,0,0]",
    "sample.affine_prob=0", "sample.brightness_prob=0", "sample.contrast_prob=0", "sample.gamma_prob=0",
    "sample.noise_prob=0",
)  # fmt: skip
ARMS: dict[str, tuple[str, ...]] = {
    "recipe (muon, one cycle, dice_ce, average)": (),
    "adamw": ("train.optimizer=adamw", "train.learning_rate=0.015"),
    "sgd": ("train.optimizer=sgd", "train.learning_rate=0.1"),
    "novograd": ("train.optimizer=novograd", "train.learning_rate=0.06"),
    "lamb": ("train.optimizer=lamb", "train.learning_rate=0.06"),
    "lars": ("train.optimizer=lars", "train.learning_rate=8"),
    "cosine": ("train.schedule=cosine",),
    "poly": ("train.schedule=poly",),
    "constant": ("train.schedule=constant",),
    "dice_focal": ("loss.name=dice_focal",),
    "tversky_ce": ("loss.name=tversky_ce",),
    "no average": ("train.ema=0",),
    "patches grow": ("sample.stages=[[0.5,0.7]]",),
}
"""Every arm is the first one with these settings."""


def run(data: Path, arm: str, seed: int, work: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The result file of one run, as `benchmarks.ladder.record` writes it; taken from `work` if it is there."""
    from benchmarks.ladder.task import task_of
    from hasten.config.load import load_run

    network = [f"network.{name}={json.dumps(value)}" for name, value in dataclasses.asdict(NETWORK).items()]
    config = load_run(None, [f"data.source={data.resolve()}", "train.target=1.0", *network, *BASE, *ARMS[arm],
                             *overrides])  # fmt: skip
    [rung] = rungs_named(["hasten"])
    attempt = Attempt(rung=rung, target=1.0, cap=600)
    return run_one(task_of(config, name=arm), attempt, seed, work, tell=lambda line: print(line, file=sys.stderr))


def ablation(data: Path, seeds: int, work: Path, arms: Sequence[str] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Results by arm, the arms in turns for every seed."""
    wanted = list(arms or ARMS)
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in wanted}
    for seed in range(seeds):
        for arm in wanted:
            print(f"ablation: {arm}, seed {seed}", file=sys.stderr)
            results[arm].append(run(data, arm, seed, work))
    return results


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """Raw numbers by series: seconds and steps to Dice LEVEL (of the runs that reached it) and best Dice, by arm."""
    entries: dict[str, list[float]] = {}
    for arm, runs in results.items():
        reached = [first for each in runs if (first := _first(each)) is not None]
        entries[f"{arm}/seconds to {LEVEL}"] = [point["seconds"] for point in reached]
        entries[f"{arm}/steps to {LEVEL}"] = [float(point["step"]) for point in reached]
        entries[f"{arm}/best Dice"] = [max(point["dice"] for point in each["curve"]) for each in runs]
    return entries


def _first(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((point for point in result["curve"] if point["dice"] is not None and point["dice"] >= LEVEL), None)
