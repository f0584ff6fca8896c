"""The ladder on the real hippocampus and on a reduced twin of the spleen, and nnU-Net at equal wall time.

Each rung adds one thing to the one below it (docs/ladder.md): from plain PyTorch and MONAI over MONAI's fast training,
complete, to Hasten as it comes. Every run is a process of its own from an empty cache, the rungs in turn for each seed;
imports, cache fill, measuring and compiling are in the clock. Network, split, preparation and Dice are the same in all.
A run that is stopped before it reaches a Dice counts with the seconds it ran, and the claim says "at least".

hippocampus: the recipe `hasten train hippocampus` on the real data. spleen: the recipe's reduced phantoms, CT scans of
96x512x512 voxels as int16 .nii.gz, resampled to 3x2.5x2.5 mm, patches of 32x80x80 voxels (the tutorial's 2x1.5x1.5 mm
and 96^3 voxels take minutes a step on two cores). nnunet: two hours of nnU-Net with a small plan, and
`hasten train DATA train.budget=10min`, which trains the same network with the same batch, on the first fold of the
hippocampus. membrane (the sections in --membrane) and microscopy (the recipe's reduced phantoms): the IoU of MONAI's
fast training and Hasten's in the same two minutes, and of a run of Hasten that is given a third of them.

The parts of a long benchmark can be run one by one: with `--work DIR` every run's result is kept there, and a run that
is there for the same task and flags, and has ended, is not repeated. With `--rungs`, the name of the result's file
lists the rungs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.data import phantoms
from benchmarks.harness import Claim, arguments, busy_machine, finish
from benchmarks.ladder.climb import Attempt, check_installed, climb
from benchmarks.ladder.outcome import best_within
from benchmarks.ladder.rungs import RUNGS, THIRD, Rung, rungs_named
from benchmarks.ladder.show import Ladder, chart, standalone_curves, terminal_table
from benchmarks.ladder.task import PeerSettings, Task, peer_of, task_of
from benchmarks.outcome import faster, series

PARTS = ("hippocampus", "spleen", "nnunet", "membrane", "microscopy")
WALL = 7200.0
"""Seconds of the comparison with nnU-Net."""
WALL_2D = 120.0
"""Seconds of the comparison on 2-D images."""
FILL = ("train.steps=5000", "train.validate_every=250")
"""More steps than fit into that time, to which Hasten compresses its schedule, and validations with it."""
ENDS = ("regular", "algorithms", "hasten")
"""The ends of the ladder and MONAI's fast rung."""
TINY = {"shape": (24, 64, 64), "spacing": (10.0, 6.4, 6.4)}
PUBLISHED = 0.8904
"""Mean Dice of nnU-Net over five folds of all 260 cases of these data, after 1,000 epochs on an H100."""
SMALL_PLAN = PeerSettings(nnunet_features=(16, 32, 64, 128), nnunet_batch_size=2)
"""Of nnU-Net for two cores: with its own patch, the network and the batch that Hasten plans for these cases too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Hasten reaches `level` at least `ratio` times as fast as the rung `peer`."""

    level: float
    peer: str
    who: str
    ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    task: Task
    attempts: tuple[Attempt, ...]
    level: float
    """Whose time the chart shows."""
    levels: tuple[float, ...]
    goals: tuple[Goal, ...] = ()
    published: float = 0.0
    """A value from the literature; above 0, the chart shows the curves and this as a line."""
    wall_s: float = 0.0
    """Time that all rungs have, after which their best values are compared; 0 compares times only."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        part={"choices": (*PARTS, "all"), "default": "all"},
        seeds={"type": int, "help": "runs of each rung; default 3, quick 1, of nnU-Net 1"},
        seeds_slow={"type": int, "help": "runs of the rungs below MONAI's fast one; default 1"},
        rungs={"nargs": "+", "default": [], "help": "these rungs only"},
        cap_slow={"type": float, "help": "stop the rungs below MONAI's fast one after this many seconds; default: the "
                  "hippocampus 300, the spleen 2400, quick 40"},
        cap={"type": float, "help": "stop the others after this; default 500 (spleen 900), quick 40"},
        override={"nargs": "+", "default": [], "metavar": "a.b=v", "help": "settings of Hasten's runs"},
        membrane={"type": Path, "help": "folder of the membrane data; without it that part is left out"},
        work={"type": Path, "help": "keep the result of every run, and the phantoms, here, and reuse what is there"},
    )  # fmt: skip
    others = busy_machine()
    with nullcontext(given.work) if given.work else tempfile.TemporaryDirectory() as work:
        for part in parts(given, Path(work)):
            measure(part, given, Path(work), others)


def measure(part: Part, given: argparse.Namespace, work: Path, others: float) -> None:
    """Run a part and write its result: a file of its own, with its chart beside it."""
    results = climb(part.task, part.attempts, work, tell=lambda line: print(f"{part.name}: {line}", file=sys.stderr))
    rungs = [attempt.rung for attempt in part.attempts]
    result = Ladder(task=part.task, rungs=rungs, results=results, level=part.level)
    Console().print(terminal_table(result))
    settings = {
        "about": __doc__,
        "task": {"train": len(part.task.train), "validation": len(part.task.validation), "patch": part.task.patch,
                 "peer": dataclasses.asdict(part.task.peer), "run": part.task.run},
        "rungs": {rung.name: {"label": rung.label, "adds": rung.adds} for rung in rungs},
        "runs": results,
    }  # fmt: skip
    name = "_".join(["ladder", part.name, *given.rungs])
    path = finish(name, claims_of(part, results), series(results, part.levels), given.out, given.quick,
                  settings=settings, others_before=others)  # fmt: skip
    drawn = standalone_curves(result, part.published) if part.published else chart(result)
    path.with_suffix(".svg").write_text(drawn, encoding="utf-8")


# What is run


def parts(given: argparse.Namespace, work: Path) -> list[Part]:
    if given.quick:
        return [tiny(given, work)]
    wanted: tuple[str, ...] = PARTS if given.part == "all" else (given.part,)
    if given.data is None and set(wanted) & {"hippocampus", "nnunet"}:
        print("no hippocampus data: give its folder with --data; those parts are left out", file=sys.stderr)
        wanted = tuple(name for name in wanted if name not in ("hippocampus", "nnunet"))
    if given.membrane is None and "membrane" in wanted:
        print("no membrane data: give its folder with --membrane; that part is left out", file=sys.stderr)
        wanted = tuple(name for name in wanted if name != "membrane")
    makers = {
        "hippocampus": hippocampus, "spleen": spleen, "nnunet": nnunet, "membrane": membrane, "microscopy": microscopy
    }  # fmt: skip
    return [makers[name](given, work) for name in wanted]


def hippocampus(given: argparse.Namespace, work: Path) -> Part:
    return Part(
        name="hippocampus",
        task=recipe_task("hippocampus", given.data, given.override),
        # The lower rungs are stopped at 0.85, which is as far as they come in minutes.
        attempts=attempts(given, target=0.88, slow_target=0.85, cap=500, slow_cap=300),
        level=0.85,
        levels=(0.80, 0.85, 0.87, 0.88),
        goals=(
            Goal(level=0.87, peer="algorithms", who="MONAI's fast training", ratio=5),
            Goal(level=0.85, peer="algorithms", who="MONAI's fast training", ratio=2.5),
            Goal(level=0.85, peer="regular", who="the regular way", ratio=8),
        ),
    )


def spleen(given: argparse.Namespace, work: Path) -> Part:
    task = reduced_task("spleen", given, work)
    return Part(
        name="spleen",
        task=dataclasses.replace(task, name="spleen, reduced phantoms"),
        attempts=attempts(given, target=0.9, cap=900, slow_cap=2400),
        level=0.9,
        levels=(0.80, 0.85, 0.90),
        goals=(
            Goal(level=0.9, peer="algorithms", who="MONAI's fast training", ratio=5),
            Goal(level=0.9, peer="regular", who="the regular way", ratio=30),
        ),
    )


def nnunet(given: argparse.Namespace, work: Path) -> Part:
    from hasten.config.load import load_run

    rungs = rungs_named(["hasten"], ["nnunet"])
    check_installed(rungs)
    data = f"data.source={given.data.resolve()}"
    config = load_run(None, [data, "data.split.by=fold", "train.target=1", "train.budget=10min", *given.override])
    wall_s = given.cap or WALL
    return Part(
        name="nnunet",
        task=task_of(config, SMALL_PLAN, name="hippocampus, fold 0"),
        attempts=tuple(
            Attempt(rung=rung, target=1.0, cap=wall_s, seeds=1 if rung.name == "nnunet" else given.seeds or 3)
            for rung in rungs
        ),
        level=0.88,
        levels=(0.80, 0.85, 0.87, 0.88),
        published=PUBLISHED,
        wall_s=wall_s,
    )


def membrane(given: argparse.Namespace, work: Path) -> Part:
    return _in_equal_time(recipe_task("membrane", given.membrane, [*FILL, *given.override]), given)


def microscopy(given: argparse.Namespace, work: Path) -> Part:
    return _in_equal_time(reduced_task("microscopy", given, work, *FILL), given)


def _in_equal_time(task: Task, given: argparse.Namespace) -> Part:
    wall_s = given.cap or WALL_2D
    whole = attempts(given, target=1.0, cap=wall_s, slow_cap=wall_s, rungs=ENDS)
    thirds = (dataclasses.replace(each, rung=THIRD, cap=wall_s / 3) for each in whole if each.rung.name == "hasten")
    return Part(
        name=task.name,
        task=task,
        attempts=(*whole, *thirds),
        level=task.target,
        levels=(0.80, 0.85, task.target) if task.target > 0.85 else (0.80, 0.85),
        wall_s=wall_s,
    )


def tiny(given: argparse.Namespace, work: Path) -> Part:
    """A smoke test: the ends of the ladder and MONAI's fast rung on phantoms that train in seconds."""
    from benchmarks.tasks import NETWORK
    from hasten.config.load import from_dict, load_run, to_dict

    folder = work.resolve() / "tiny"
    data = folder if (folder / "dataset.json").is_file() else phantoms(folder, 7, TINY)
    config = load_run(None, [
        f"data.source={data}", "prepare.spacing=[10,8,8]", "sample.patch=[24,32,32]", "sample.batch_size=4",
        "train.steps=60", "train.validate_every=20", "train.target=0.3", *given.override,
    ])  # fmt: skip
    tree = to_dict(config) | {"network": dataclasses.asdict(NETWORK)}
    given.seeds = given.seeds or 1
    return Part(
        name="tiny",
        task=task_of(from_dict(tree, where="tiny"), PeerSettings(), name="tiny phantoms"),
        attempts=attempts(given, target=0.3, cap=40, slow_cap=40, rungs=ENDS),
        level=0.3,
        levels=(0.1, 0.3),
        goals=(Goal(level=0.3, peer="algorithms", who="MONAI's fast training", ratio=3),),
    )


def recipe_task(name: str, data: Path, overrides: Sequence[str]) -> Task:
    """Of a recipe on its real data."""
    from hasten.recipes.load import load_recipe
    from hasten.recipes.run import run_of

    recipe = load_recipe(name)
    return task_of(run_of(recipe, [f"data.source={data.resolve()}", *overrides]), peer_of(recipe.peer), name=name)


def reduced_task(name: str, given: argparse.Namespace, work: Path, *more: str) -> Task:
    """Of a recipe on its small phantoms."""
    from benchmarks.ladder.compare import written_twin
    from hasten.recipes.load import load_recipe
    from hasten.recipes.run import run_of, twin_of

    recipe = load_recipe(name)
    twin = twin_of(recipe, reduced=True)
    config = run_of(recipe, [f"data.source={written_twin(recipe, twin, work)}", *more, *given.override], twin=twin)
    return task_of(config, peer_of(twin.peer), name=name)


def attempts(
    given: argparse.Namespace, *, target: float, cap: float, slow_cap: float, slow_target: float | None = None,
    rungs: Sequence[str] = (),
) -> tuple[Attempt, ...]:  # fmt: skip
    """The rungs of --rungs, else `rungs`, else all; those below MONAI's fast one have a cap and seeds of their own."""
    return tuple(
        Attempt(
            rung=rung,
            target=(slow_target or target) if is_slow(rung) else target,
            cap=(given.cap_slow or slow_cap) if is_slow(rung) else (given.cap or cap),
            seeds=(given.seeds_slow or 1) if is_slow(rung) else (given.seeds or 3),
        )
        for rung in rungs_named(given.rungs or rungs)
    )


def is_slow(rung: Rung) -> bool:
    names = [each.name for each in RUNGS]
    return names.index(rung.name) < names.index("algorithms")


# What is said of it


def claims_of(part: Part, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Claim]:
    claims = [
        faster(
            f"{part.name}, Dice {goal.level:.2f}: {goal.who} takes this many times Hasten's seconds",
            results.get("hasten", ()), results.get(goal.peer, ()), goal.level, goal.ratio,
        )
        for goal in part.goals if goal.peer in results and "hasten" in results
    ]  # fmt: skip
    if part.wall_s:
        claims += _best_in_time(part, results)
    if part.name == "nnunet":
        level = best_within(results.get("nnunet", ()), part.wall_s)
        if level is not None:
            name = f"{part.task.name}: nnU-Net's seconds to its best Dice, {level:.4f}, over Hasten's"
            claims.append(faster(name, results.get("hasten", ()), results["nnunet"], level, 4))
    return claims


def _best_in_time(part: Part, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Claim]:
    """The best value of Hasten's runs, in the whole and in a third of the time, against the best of the others."""
    metric = {"dice": "Dice", "iou": "IoU"}[part.task.metric]
    ours = (("hasten", "in the same time", part.wall_s), (THIRD.name, "in a third of the time", part.wall_s / 3))
    others = [best_within(runs, part.wall_s) for name, runs in results.items() if name not in ("hasten", THIRD.name)]
    theirs = max((value for value in others if value is not None), default=None)
    claims = []
    for rung, text, seconds in ours:
        # Where no run was given a third of the time, the whole run's curve says what it had reached by then.
        mine = best_within(results.get(rung) or results.get("hasten", ()), seconds)
        more = None if mine is None or theirs is None else round(mine - theirs, 4)
        name = (
            f"{part.name}, {part.wall_s:.0f} s: Hasten's best {metric} {text} is so much above the best of the others"
        )
        claims.append(Claim(name, more, "> 0", more is not None and more > 0))
    return claims


if __name__ == "__main__":
    main()
