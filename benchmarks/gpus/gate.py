"""MONAI's own gate of training speed: 41 made-up volumes of 128^3, 5 epochs, Dice above 0.95 within 100 seconds.

MONAI's arm is its upstream test (`benchmarks.gpus.gate_monai`), Hasten's the recipe `synthetic41`: the same volumes,
split, network, crops, patches in a batch and in all (5 epochs of 4 crops of every case, 40 steps), validated as often
and by windows of the same size; augmentation, optimizer and precision are its own. Each is a process of its own, its
imports, cache fill and measuring in the clock; writing the volumes is not, as upstream. Hasten is held to the
foreground's Dice; MONAI's own mean has the background in it, which is easier, and both are in the file. Arms take turns
over the seeds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpus.arms import SPARE, Run, fits, run_arm, series_of, twin_task
from benchmarks.gpus.sheet import Sheet
from benchmarks.harness import Claim
from benchmarks.ladder.outcome import time_to
from benchmarks.ladder.task import write_task

SECONDS = 100.0
QUICK: dict[str, Any] = {
    "shape": (64, 64, 64), "cases": 6, "validation_last": 2,
    "run": {
        "sample": {"patch": [16, 16, 16], "batch_size": 4},
        "network": {"channels": [4, 8, 16], "strides": [[2, 2, 2], [2, 2, 2]]},
        "train": {"steps": 4, "validate_every": 2},
        "infer": {"patch": [32, 32, 32]},
    },
}  # fmt: skip


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task, data = twin_task("synthetic41", folder, quick=_quick() if sheet.quick else None)
        path = write_task(folder / "task.json", task)
        device = ["--device", sheet.device.type]
        sizes = ["--crop", "16", "--window", "32", "--epochs", "2"] if sheet.quick else []
        arms = {
            "monai": ("benchmarks.gpus.gate_monai",
                      ["--data", str(data), "--train", str(len(task.train)), "--target", str(task.target), *sizes]),
            "hasten": ("benchmarks.ladder.arms.hasten", ["--task", str(path)]),
        }  # fmt: skip
        runs: dict[str, list[Run]] = {arm: [] for arm in arms}
        for seed in range(1 if sheet.quick else 5):
            if seed and not fits(sheet, runs):
                sheet.skip(f"seed {seed} and later ones", f"no time: {sheet.left():.0f} s were left")
                break
            for arm, (module, flags) in arms.items():
                out = folder / f"{arm}_{seed}.json"
                limit = max(10.0, sheet.left() - SPARE)
                own = [*flags, *device, "--seed", str(seed)]
                result = run_arm(sheet, f"{arm}, seed {seed}", module, own, out, seconds=limit)
                runs[arm] += [result] if result else []
                keep(sheet, runs, task.target)
    sheet.claim(*claims(runs, task.target))


def _quick() -> dict[str, Any]:
    return {**QUICK, "peer": {"patch": (16, 16, 16), "cases": 2, "crops": 2}}


def keep(sheet: Sheet, runs: dict[str, list[Run]], target: float) -> None:
    for arm, result in runs.items():
        sheet.keep(series_of(arm, result, target))
    sheet.keep(
        series_of("monai, its own mean with background", [with_background(run) for run in runs["monai"]], target)
    )
    sheet.tell("runs", runs)


def with_background(run: Run) -> Run:
    """MONAI's run scored as its test scores it."""
    curve = [{**point, "dice": point["dice_with_background"]} for point in run["curve"]]
    return {**run, "curve": curve, "best": max(point["dice"] for point in curve)}


def claims(runs: dict[str, list[Run]], target: float) -> list[Claim]:
    """That every run of Hasten's passes, and the ratio to MONAI's by its own, easier mean."""
    ours = [time_to(run, target) for run in runs["hasten"]]
    theirs = [time_to(with_background(run), target) for run in runs["monai"]]
    passed = bool(ours) and all(time.reached for time in ours)
    slowest = max(time.seconds for time in ours) if passed else None
    ratio = None
    if passed and theirs:
        ratio = median(time.seconds for time in theirs) / median(time.seconds for time in ours)
    reached = sum(time.reached for time in theirs)
    return [
        Claim.at_most(f"seconds to a foreground Dice of {target}, the slowest run", slowest, SECONDS),
        Claim.at_least(f"MONAI, to its own mean with background, takes this many times as long ({reached} of "
                       f"{len(theirs)} runs reached it)", ratio, 1),
    ]  # fmt: skip
