"""Seconds to a Dice on phantoms of the spleen task: MONAI's fast training against Hasten's, everything in the clock.

The recipe `spleen` on phantoms of 96x256x256 voxels (of 2.5x1.6x1.6 mm; the real scans are four times as large in a
slice), 32 to train on and 9 to validate on, resampled to 2x1.5x1.5 mm, the tutorial's network and 16 patches of 96^3 a
step. `algorithms` is MONAI's fast arm, `hasten` a run as it comes, `engine` Hasten's loop with the algorithms of the
fast arm, `algorithms, autotuned` MONAI's fast arm without the deterministic algorithms of cuDNN that the tutorial's
`set_determinism` asks for. Processes of their own in turns over the seeds, from an empty cache; imports, cache fill,
measuring, compiling and validation count, writing the phantoms does not. A run that is stopped before the target counts
with the seconds it ran, and the claim says "at least".
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpus.arms import SPARE, Run, fits, run_arm, series_of, twin_task
from benchmarks.gpus.sheet import Sheet
from benchmarks.harness import Claim
from benchmarks.ladder.outcome import median_time
from benchmarks.ladder.rungs import RUNGS, Rung
from benchmarks.ladder.task import write_task

OURS, THEIRS, BETWEEN = "hasten", "algorithms", "engine"
AUTOTUNED = "algorithms, autotuned"
GOAL = 4.0
FIRST_SHARE = 0.55
"""Of the part's time, for Hasten's first run: a pair is worth more than a long run alone."""
LEVELS = (0.80, 0.90, 0.94)
TWIN = {"shape": (96, 256, 256), "spacing": (2.5, 1.6, 1.6)}
QUICK = {
    "shape": (24, 64, 64), "spacing": (10.0, 6.4, 6.4), "cases": 6, "validation_last": 2, "target": 0.05,
    "run": {
        "prepare": {"spacing": [10.0, 8.0, 8.0]},
        "sample": {"patch": [16, 32, 32], "batch_size": 4},
        "network": {"channels": [4, 8, 16], "strides": [[2, 2, 2], [2, 2, 2]], "norm": "instance", "dropout": 0},
        "train": {"steps": 20, "validate_every": 5},
        "infer": {"patch": [16, 32, 32]},
    },
}  # fmt: skip


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    rungs = {rung.name: rung for rung in RUNGS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task, _ = twin_task("spleen", folder, quick=_quick() if sheet.quick else None, **TWIN)
        path = write_task(folder / "task.json", task)
        results = {"target": task.target, "patch": task.patch, "network": task.network, "run": task.run["train"]}
        sheet.tell("task", results)
        runs: dict[str, list[Run]] = {arm: [] for arm in (OURS, THEIRS)}
        for seed in range(1 if sheet.quick else 20):
            if seed and not fits(sheet, runs):
                sheet.skip(f"seed {seed} and later ones", f"no time: {sheet.left():.0f} s were left")
                break
            for arm in runs:
                train(sheet, rungs[arm], seed, path, runs[arm])
                keep(sheet, runs, task.target)
        extra = [(BETWEEN, rungs[BETWEEN], ()), (AUTOTUNED, rungs[THEIRS], ("--autotune",))]
        more: dict[str, list[Run]] = {}
        for arm, rung, flags in extra:
            if sheet.quick or fits(sheet, {OURS: runs[OURS]}):
                train(sheet, rung, 0, path, more.setdefault(arm, []), name=arm, flags=flags)
                keep(sheet, runs | more, task.target)
    sheet.claim(claim(runs, task.target))


def _quick() -> dict[str, object]:

    return {**QUICK, "peer": {"patch": (16, 32, 32), "cases": 2, "crops": 2}}


def train(
    sheet: Sheet, rung: Rung, seed: int, task: Path, runs: list[Run], *, name: str | None = None,
    flags: Sequence[str] = (),
) -> None:  # fmt: skip
    """One run, cut off in time for the sheet to be finished. flags: besides the rung's own."""
    name = name or rung.name
    left = sheet.left() - SPARE
    if rung.name == OURS and not seed:
        left *= FIRST_SHARE
    out = task.with_name(f"{name.replace(', ', '_')}_{seed}.json")
    # So that it can validate once more after its own limit.
    own = ["--task", str(task), "--seed", str(seed), "--device", sheet.device.type, "--max-seconds",
           f"{max(10.0, 0.9 * left):.0f}", *rung.flags, *flags]  # fmt: skip
    module = f"benchmarks.ladder.arms.{rung.module}"
    result = run_arm(sheet, f"{name}, seed {seed}", module, own, out, seconds=max(10.0, left))
    if result:
        runs.append(result)


def keep(sheet: Sheet, runs: dict[str, list[Run]], target: float) -> None:
    for level in sorted({*(level for level in LEVELS if level < target), target}):
        for arm, result in runs.items():
            if result:
                sheet.keep(series_of(arm, result, level))
    sheet.tell("runs", runs)


def claim(runs: dict[str, list[Run]], target: float) -> Claim:
    """The aim, of medians over the seeds."""
    mine, theirs = (median_time(runs[arm], target) for arm in (OURS, THEIRS))
    text = f"to Dice {target} on the spleen's phantoms: MONAI-fast takes this many times Hasten's seconds"
    if mine is None or theirs is None or not mine.reached:
        why = "an arm was not run" if mine is None or theirs is None else "Hasten did not reach it"
        return Claim.at_least(f"{text} ({why})", None, GOAL)
    if not theirs.reached:
        text += f" (at least: stopped after {theirs.seconds:.0f} s)"
    return Claim.at_least(text, theirs.seconds / mine.seconds, GOAL)
