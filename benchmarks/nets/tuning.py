"""Steps to a Dice or IoU from the weights of an earlier run against those from random ones.

Nothing but steps is counted, so that other programs on the machine change nothing. The learning rate of the tuned runs
was chosen among three on another split (data.split.seed=1, seed 0) than the one reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = ("train.steps=4", "train.validate_every=2", "network.channels=[4,8]", "sample.patch=[16,16,16]",
        "network.strides=[[2,2,2]]", "infer.patch=[16,16,16]")  # fmt: skip
TINY_2D = ("train.steps=4", "train.validate_every=2", "network.channels=[4,8]", "sample.patch=[1,32,32]",
           "network.strides=[[1,2,2]]", "infer.patch=[1,32,32]")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """A run that gives weights, and the runs that are compared."""

    name: str
    target: float
    recipe: str
    first: Sequence[str]
    """Overrides of the run whose weights are taken."""
    both: Sequence[str]
    """Of every run that is compared."""
    tuned: Sequence[str]
    """Of those that start from weights."""
    about: str


def hippocampus(data: Path, *, quick: bool) -> Tuning:
    """Weights from a run on the first half of the training cases, for runs on the other half."""
    source = f"data.source={data.resolve()}"
    few = TINY if quick else ()
    return Tuning(
        name="hippocampus",
        target=0.85,
        recipe="hippocampus",
        first=(source, "data.split.train_range=[0, 0.5]", "train.target=1.0", "train.seed=100", *few),
        both=(source, "data.split.train_range=[0.5, 1]", "train.target=0.85", "train.validate_every=10",
              "train.steps=400", *few),
        tuned=("train.learning_rate=0.003",),
        about="first run: half of the training cases, 500 steps; compared: the other half, 400 steps each; same "
        "validation cases, which no run trains on",
    )  # fmt: skip


def membrane(data: Path, work: Path, *, quick: bool) -> Tuning:
    """Weights from a run on the recipe's phantoms, for runs on the real sections."""
    from hasten.recipes.load import load_recipe
    from hasten.recipes.twin import twin_of, write_twin

    recipe = load_recipe("membrane")
    made = work / "cells"
    if not made.exists():
        write_twin(recipe, twin_of(recipe, cases=4 if quick else None), made)
    few = TINY_2D if quick else ()
    return Tuning(
        name="membrane",
        target=0.86,
        recipe="membrane",
        first=(f"data.source={made.resolve()}", "train.target=1.0", "train.steps=300", "train.seed=100", *few),
        both=(f"data.source={data.resolve()}", "train.target=0.86", "train.steps=300", "train.validate_every=5", *few),
        tuned=("train.learning_rate=0.003",),
        about="first run: 30 phantoms of cells, 300 steps; compared: 24 sections of electron microscopy, 300 steps",
    )


def tuned(task: Tuning, seeds: int, work: Path) -> dict[str, list[float]]:
    """Steps to the target of each seed, from random weights and from those of the first run."""
    first = work / f"{task.name}_first"
    run(task, task.first, first, work)
    results: dict[str, list[float]] = {}
    for seed in range(seeds):
        for arm, more in (("random", ()), ("tuned", (f"network.weights={first.resolve()}", *task.tuned))):
            print(f"  {task.name}: {arm}, seed {seed}", file=sys.stderr)
            out = work / f"{task.name}_{arm}_{seed}"
            curve = run(task, (*task.both, f"train.seed={seed}", *more), out, work)
            reached = [step for step, value in curve if value >= task.target]
            # A run that does not reach it counts with the steps that it had.
            results.setdefault(f"{arm}, steps", []).append(float(reached[0] if reached else curve[-1][0]))
            results.setdefault(f"{arm}, reached", []).append(float(bool(reached)))
    return results


def run(task: Tuning, overrides: Sequence[str], out: Path, work: Path) -> list[tuple[int, float]]:
    """(step, mean metric) of each validation of a run, which is trained unless it is there."""
    import hasten
    from hasten.recipes.load import load_recipe
    from hasten.recipes.run import run_of

    recipe = load_recipe(task.recipe)
    quiet = ("observe.trackers=[]", "observe.monitor_every=0")
    config = run_of(recipe, [*overrides, *quiet, f"cache.dir={(work / 'cache').resolve()}"])
    if not (out / "summary.json").is_file():
        hasten.train(config, out)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[recipe.metric]) for row in rows if row["kind"] == "validation"]
