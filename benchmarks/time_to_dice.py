"""Seconds from process start to a validation Dice: Hasten against MONAI's fast and regular ways.

Every run is a process of its own, one after another, Hasten and the peers in turn for each seed; imports, cache fill,
measuring and compiling are in the clock. Network, split, case preparation and Dice are the same in all arms
(`benchmarks.peers.common`); the peers otherwise follow MONAI's fast training tutorial (`monai_fast`, `regular`), and
Hasten its own plan with the schedule given below. Like the tutorial's fast arm, Hasten's only crops: rotation and
intensity augmentation pay in longer runs.
A run that is stopped before it reaches a Dice counts with the seconds it ran, and the claim says "at least".

Phantoms: 25 CT scans of 96x512x512 voxels of 2.5x0.8x0.8 mm as int16 .nii.gz, 20 to train on, resampled to 3x2.5x2.5 mm
with patches of 32x80x80 voxels in all arms (the spleen tutorial's 2x1.5x1.5 mm and 96^3 voxels take minutes a step on
two cores) and sliding windows of that size with a quarter overlap. The peers take the tutorial's 2 cases x 4 patches a
step and, as an epoch is only 10 steps, validate every fifth one.

The parts of a long benchmark can be run one by one: with `--work DIR` every run's result is kept there, and a run that
is there with the same flags and has ended is not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.data import CT, phantoms
from benchmarks.harness import ROOT, Claim, arguments, busy_machine, finish
from benchmarks.outcome import best_within, cell, faster, series

MODULES = {
    "hasten": "benchmarks.ours.train",
    "fast": "benchmarks.peers.monai_fast",
    "regular": "benchmarks.peers.regular",
}
LEVELS = (0.80, 0.85, 0.87, 0.88)
BEST_SECONDS = 600.0
CROPS_ONLY = (
    "sample.flip_prob=[0,0,0]", "sample.affine_prob=0", "sample.brightness_prob=0", "sample.contrast_prob=0",
    "sample.gamma_prob=0", "sample.noise_prob=0",
)  # fmt: skip
TINY = {"shape": (24, 64, 64), "spacing": (10.0, 6.4, 6.4)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train, with the flags of its process."""

    name: str
    kind: str
    """A key of MODULES."""
    target: float
    cap: float
    """Seconds after which it is stopped."""
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    seeds: int | None = None
    """Runs, where they are fewer than the part's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """`ours` reaches `level` at least `ratio` times as fast as `peer`."""

    level: float
    ours: str
    peer: str
    ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    data: Path
    flags: tuple[str, ...]
    arms: tuple[Arm, ...]
    goals: tuple[Goal, ...]
    levels: tuple[float, ...] = LEVELS
    best: float | None = None
    """Dice to be reached within BEST_SECONDS."""
    seeds: int = field(default=3)


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        part={"choices": ("hippocampus", "best", "phantoms", "all"), "default": "all"},
        seeds={"type": int, "help": "runs per arm; default 3, quick 1"},
        seeds_regular={"type": int, "help": "runs of the regular arm, which takes longest; default --seeds"},
        arms={"nargs": "+", "choices": tuple(MODULES), "default": list(MODULES)},
        cap_fast={"type": float, "help": "stop the fast arm after this; default 500 (phantoms 900), quick 15"},
        cap_regular={"type": float, "help": "stop the regular arm after this; default 600 (phantoms 2400), quick 15"},
        override={"nargs": "+", "default": [], "metavar": "a.b=v", "help": "settings of Hasten's runs"},
        work={"type": Path, "help": "keep the result of every run, and the phantoms, here, and reuse what is there"},
        rescore={"action": "store_true", "help": "phantoms: also score the best weights in the files' own voxels"},
    )  # fmt: skip
    others = busy_machine()
    with nullcontext(given.work) if given.work else tempfile.TemporaryDirectory() as work:
        found = {part.name: run_part(part, given, Path(work)) for part in parts(given, Path(work))}
        claims = [claim for part, results in found.values() for claim in claims_of(part, results)]
        results = {
            f"{name}/{key}": values
            for name, (part, by_arm) in found.items()
            for key, values in series(by_arm, part.levels).items()
        }
        for part, by_arm in found.values():
            print_table(part, by_arm)
        settings = {"about": __doc__, "runs": {name: by_arm for name, (_, by_arm) in found.items()}}
        # A part on its own is a result of its own, so that the parts of a long benchmark do not replace each other.
        name = "time_to_dice" if given.part == "all" else f"time_to_dice_{given.part}"
        finish(name, claims, results, given.out, given.quick, settings=settings, others_before=others)


# What is run


def parts(given: argparse.Namespace, work: Path) -> list[Part]:
    wanted = ("hippocampus", "best", "phantoms") if given.part == "all" else (given.part,)
    if given.quick:
        return [tiny_phantoms(given, work)]
    if given.data is None and set(wanted) & {"hippocampus", "best"}:
        print("no hippocampus data: give its folder with --data; those parts are left out", file=sys.stderr)
        wanted = tuple(name for name in wanted if name == "phantoms")
    makers = {"hippocampus": hippocampus, "best": best, "phantoms": ct_phantoms}
    return [makers[name](given, work) for name in wanted]


def hippocampus(given: argparse.Namespace, work: Path) -> Part:
    return Part(
        name="hippocampus",
        data=given.data,
        flags=("--kind", "mr"),
        arms=(
            Arm(name="hasten", kind="hasten", target=0.88, cap=900,
                overrides=("train.steps=1000", "train.validate_every=50", "train.learning_rate=0.01", *CROPS_ONLY,
                           *given.override)),
            Arm(name="fast", kind="fast", target=0.88, cap=given.cap_fast or 500),
            Arm(name="regular", kind="regular", target=0.85, cap=given.cap_regular or 600, seeds=given.seeds_regular),
        ),
        goals=(
            Goal(level=0.87, ours="hasten", peer="fast", ratio=4),
            Goal(level=0.85, ours="hasten", peer="fast", ratio=2.5),
            Goal(level=0.85, ours="hasten", peer="regular", ratio=8),
        ),
        seeds=given.seeds or 3,
    )  # fmt: skip


def best(given: argparse.Namespace, work: Path) -> Part:
    overrides = ("train.steps=7500", "train.validate_every=250", *given.override)
    return Part(
        name="best",
        data=given.data,
        flags=("--kind", "mr"),
        arms=(Arm(name="hasten", kind="hasten", target=1.0, cap=BEST_SECONDS, overrides=overrides),),
        goals=(),
        levels=(*LEVELS, 0.89),
        best=0.89,
        seeds=given.seeds or 1,
    )


def ct_phantoms(given: argparse.Namespace, work: Path) -> Part:
    shared = ("--kind", "ct", "--spacing", "3", "2.5", "2.5", "--patch", "32", "80", "80", "--validate-every", "5")
    overrides = ("train.steps=400", "train.validate_every=50", "sample.batch_size=4", "infer.overlap=0.25",
                 *CROPS_ONLY, "train.learning_rate=0.015", *given.override)  # fmt: skip
    return Part(
        name="phantoms",
        data=written(work / "phantoms", 25, CT),
        flags=shared,
        arms=(
            Arm(name="hasten", kind="hasten", target=0.9, cap=900, overrides=overrides),
            Arm(name="fast", kind="fast", target=0.9, cap=given.cap_fast or 900),
            Arm(name="regular", kind="regular", target=0.9, cap=given.cap_regular or 2400, seeds=given.seeds_regular),
        ),
        goals=(
            Goal(level=0.9, ours="hasten", peer="fast", ratio=3),
            Goal(level=0.9, ours="hasten", peer="regular", ratio=30),
        ),
        levels=(0.80, 0.85, 0.90),
        seeds=given.seeds or 3,
    )


def tiny_phantoms(given: argparse.Namespace, work: Path) -> Part:
    target = 0.3
    overrides = ("train.steps=60", "train.validate_every=20", "sample.batch_size=4", *given.override)
    return Part(
        name="phantoms",
        data=written(work / "tiny", 7, TINY),
        flags=("--kind", "ct", "--spacing", "10", "8", "8", "--patch", "24", "32", "32"),
        arms=(
            Arm(name="hasten", kind="hasten", target=target, cap=30, overrides=overrides),
            Arm(name="fast", kind="fast", target=target, cap=given.cap_fast or 15),
            Arm(name="regular", kind="regular", target=target, cap=given.cap_regular or 15),
        ),
        goals=(
            Goal(level=target, ours="hasten", peer="fast", ratio=3),
            Goal(level=target, ours="hasten", peer="regular", ratio=30),
        ),
        levels=(0.1, target),
        seeds=given.seeds or 1,
    )


def written(folder: Path, count: int, size: Mapping[str, tuple[float, ...]]) -> Path:
    """The phantoms in `folder`, written if they are not there. dataset.json comes last: they are whole."""
    return folder if (folder / "dataset.json").is_file() else phantoms(folder, count, size)


# Running it


def run_part(part: Part, given: argparse.Namespace, work: Path) -> tuple[Part, dict[str, list[dict[str, Any]]]]:
    results: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in part.arms if arm.kind in given.arms}
    for seed in range(part.seeds):
        for arm in part.arms:
            if arm.name in results and seed < (arm.seeds or part.seeds):
                results[arm.name].append(
                    run_arm(part, arm, seed, work, rescore=given.rescore and part.name == "phantoms")
                )
    return part, results


def run_arm(part: Part, arm: Arm, seed: int, work: Path, *, rescore: bool) -> dict[str, Any]:
    """The result of one run, from `work` if it ended there with the same flags."""
    flags = ["--data", str(part.data), "--seed", str(seed), "--target", str(arm.target), "--max-seconds", str(arm.cap),
             *part.flags, *arm.flags, *arm.overrides]  # fmt: skip
    name = f"{part.name}_{arm.name}_{seed}_{hashlib.sha256(json.dumps(flags).encode()).hexdigest()[:8]}"
    out, weights = work / f"{name}.json", work / f"{name}.pt"
    if not ended(out) or (rescore and not weights.is_file()):
        print(f"\n{part.name}, {arm.name}, seed {seed}: target {arm.target}, at most {arm.cap:.0f} s", file=sys.stderr)
        keep = ["--weights", str(weights)] if rescore else []
        command = [sys.executable, "-m", MODULES[arm.kind], *keep, "--out", str(out), *flags]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"{arm.name} with seed {seed} failed (exit {done.returncode}); see its messages above")
    result = json.loads(out.read_text())
    if rescore and "original_voxel_dice" not in result:
        from benchmarks.rescore import rescored

        result["original_voxel_dice"] = rescored(part.data, part.flags, weights, depth_first=arm.kind == "hasten")
        out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def ended(out: Path) -> bool:
    """Whether a result file is there and its run was not cut off."""
    return out.is_file() and json.loads(out.read_text())["stopped"] is not None


# What is said of it


def claims_of(part: Part, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Claim]:
    claims = [
        faster(
            f"{part.name}, Dice {goal.level:.2f}: MONAI {goal.peer} takes this many times Hasten's seconds",
            results.get(goal.ours, ()), results.get(goal.peer, ()), goal.level, goal.ratio,
        )
        for goal in part.goals
    ]  # fmt: skip
    if part.best is not None:
        value = best_within(results.get("hasten", ()), BEST_SECONDS)
        claims.append(Claim.at_least(f"{part.name}: Hasten's best Dice within {BEST_SECONDS:.0f} s", value, part.best))
    return claims


def print_table(part: Part, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = (f"to Dice {level:.2f}" for level in part.levels)
    table = Table("arm", *columns, "best", title=f"{part.name}: median \\[min-max], n reached")
    for arm, runs in results.items():
        tops = [run["best"] for run in runs if run["best"] is not None]
        table.add_row(arm, *(cell(runs, level) for level in part.levels), f"{max(tops):.4f}" if tops else "-")
    Console().print(table)


if __name__ == "__main__":
    main()
