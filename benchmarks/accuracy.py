"""Dice by the time that a run is given, and what changes it: folds, single choices, and seconds before the first step.

`folds`: `hasten train DATA --folds all train.budget=...` on the hippocampus, one fold after another, scored on the
images' own voxels. `ensemble`: the same with several seeds, whose runs predict a fold's cases together. `learning`:
each choice on its own against the same base, by steps, which no load of the machine changes, on another split
(data.split.seed=1) than the folds (seed 0). `recipe`: steps and patch sizes of the recipe `hippocampus`, on that split
too. `start`: seconds from the start of the process to the first step, of a second run of the same task.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.data import phantoms
from benchmarks.harness import Claim, Part, arguments, part_arguments, run_parts
from hasten.observe.env import cpu_has_bf16

GOALS = {"5min": 0.886, "30min": 0.8904}
"""Mean Dice over all folds by the budget of each; nnU-Net's published one is 0.8904, at 1.7 h a fold on an H100."""
ENSEMBLE = 0.8904
"""Of several runs a fold, which may take 30 minutes together."""
START_S = 3.0
SPLIT = ("data.split.by=fraction", "data.split.fraction=0.2", "data.split.seed=1")
STRONG = "sample.rotate_deg=[30,30,30] sample.scale_range=[0.7,1.4]"
CHOICES = {
    "base": "",
    "unet": "network.name=unet",
    "unet 32": "network.name=unet network.channels=[32,64,128,256]",
    "8 channels at full resolution": "network.channels=[8,32,64,128]",
    "half the channels": "network.channels=[8,16,32,64]",
    "residual encoder": "network.name=residualencoderunet",
    "deep supervision": "network.deep_supervision=2",
    "strong rotation and zoom": STRONG,
    "strong, mirrored": f"{STRONG} sample.flip_prob=[0.5,0.5,0.5] infer.flip_axes=[0,1,2]",
    "nnU-Net's augmentation": "augment.preset=nnunet infer.flip_axes=[0,1,2]",
    "half the learning rate": "train.learning_rate=0.004",
    "ten times the weight decay": "train.weight_decay=0.1",
    "smaller patches at first": "sample.stages=[[0.4,0.5]]",
    "more crops at the foreground": "sample.foreground_prob=0.9",
    "no averaged weights": "train.ema=0",
    "shorter average": "train.ema=0.98",
    "Dice and focal loss": "loss.name=dice_focal",
}
"""Overrides by name; each is compared with the first."""
_SLOW = "train.learning_rate=0.01"
_TWO_STAGES = f"{_SLOW} sample.stages=[[0.3,0.5],[0.6,0.75]]"
_WHOLE = "sample.patch=[40,56,40] sample.batch_size=2"
"""Patches that hold a case, and a step of about as many voxels as the recipe's."""
RECIPE = {
    "500 steps": f"{_WHOLE} train.steps=500 {_SLOW} sample.stages=[]",
    "440 steps": f"{_WHOLE} train.steps=440 {_SLOW} sample.stages=[]",
    "440 steps, small patches at first": f"{_WHOLE} train.steps=440 {_SLOW} sample.stages=[[0.4,0.5]]",
    "440 steps, small patches at first, in two stages": f"{_WHOLE} train.steps=440 {_TWO_STAGES}",
    "340 steps, small patches at first, in two stages": f"{_WHOLE} train.steps=340 {_TWO_STAGES}",
    "340 steps": f"{_WHOLE} train.steps=340 {_SLOW} sample.stages=[]",
    "250 steps, small patches at first, in two stages": f"{_WHOLE} train.steps=250 {_TWO_STAGES}",
    "500 steps, small patches at first, in two stages": f"{_WHOLE} train.steps=500 {_TWO_STAGES}",
    "300 steps of crops, in two stages": f"train.steps=300 {_TWO_STAGES}",
    "700 steps of crops, in two stages": f"train.steps=700 {_TWO_STAGES}",
    "240 steps of crops, half the sides at first, twice the rate": "train.steps=240",
}
"""Overrides by name of the recipe; the last one is the recipe itself. In float32, which every processor has."""
FIXED = (f"train.precision={'bf16' if cpu_has_bf16() else 'fp32'}", "train.channels_last=true")
"""Of `learning`, so that no measurement on a loaded machine decides them."""
TINY = ("sample.patch=[16,16,16]", "network.strides=[[2,2,2]]", "network.channels=[4,8]", "infer.patch=[16,16,16]",
        "sample.compile=false", "train.compile=false")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        budget={"default": "5min", "help": "folds: time of each fold, 5min or 30min for the goals; default 5min"},
        folds={"default": "all", "help": "folds: all, or numbers such as 0,1"},
        steps={"type": int, "default": 1500, "help": "learning: steps of each run; default 1500"},
        choices={"nargs": "+", "choices": CHOICES | RECIPE, "metavar": "NAME",
                 "help": "learning, recipe: these get all seeds, the others the first one; "
                 "default all"},
        seeds={"type": int, "help": "learning, recipe, ensemble: runs of each choice, or of a "
               "fold; default 3, quick 1"},
        work={"type": Path, "help": "keep the runs here, and reuse those that are there"},
    )  # fmt: skip
    with nullcontext(given.work) if given.work else tempfile.TemporaryDirectory() as work:
        given.work = Path(work).resolve()
        if given.data is None:
            given.data = phantoms(given.work / "set", 12, {"shape": (40, 56, 40)})
        run_parts("accuracy", PARTS, given, __doc__)


def _config(given: argparse.Namespace, *more: str) -> Any:
    from hasten.config.load import load_run

    return load_run(None, [*_settings(given), *more])


def _recipe_config(given: argparse.Namespace, *more: str) -> Any:
    from hasten.recipes.load import load_recipe
    from hasten.recipes.run import run_of

    return run_of(load_recipe("hippocampus"), [*_settings(given), "train.target=null", *more, "train.precision=fp32"])


def _settings(given: argparse.Namespace) -> list[str]:
    few = TINY if given.quick else ()
    quiet = ("observe.trackers=[]", "observe.monitor_every=0")
    return [f"data.source={given.data.resolve()}", f"cache.dir={given.work / 'cache'}", *quiet, *few]


def folds(given: argparse.Namespace) -> Part:
    from hasten.cli.folds import parse_folds
    from hasten.training.folds import train_folds

    budget = _budget(given)
    out = _folds_folder(given, 0)
    scores = train_folds(_config(given, f"train.budget={budget}"), out, parse_folds(given.folds))
    results = {
        "dice by case": [case["dice"]["mean"] if isinstance(case["dice"], dict) else case["dice"]
                         for case in scores["cases"].values()],
        "dice by fold": [fold["mean"]["dice"] for fold in scores["folds"].values()],
        "seconds by fold": [_summary(out / f"fold{fold}")["seconds"]["total"] for fold in scores["folds"]],
    }  # fmt: skip
    numbers = ", ".join(scores["folds"])
    what = f"hippocampus, folds {numbers} of 5, mean Dice over cases with {budget} for each"
    goal = GOALS.get(budget)
    claims = [] if goal is None else [Claim.at_least(what, scores["over_cases"]["dice"], goal)]
    return claims, results, {"cv": scores, "plan": json.loads((out / "fold0" / "plan.json").read_text())["decisions"]}


def ensemble(given: argparse.Namespace) -> Part:
    """Each run predicts alone too: the first figure of each list is seed 0's."""
    from hasten.cli.folds import parse_folds
    from hasten.training.folds import train_folds

    budget, seeds = _budget(given), list(range(given.seeds or (2 if given.quick else 3)))
    alone = [
        train_folds(
            _config(given, f"train.budget={budget}", f"train.seed={seed}"), _folds_folder(given, seed),
            parse_folds(given.folds),
        )
        for seed in seeds
    ]  # fmt: skip
    results: dict[str, list[float]] = {"dice of each seed": [scores["over_cases"]["dice"] for scores in alone]}
    results["dice by case"], results["dice by fold"] = [], []
    for fold in alone[0]["folds"]:
        by_case = _together([_folds_folder(given, seed) / f"fold{fold}" for seed in seeds], given)
        results["dice by case"] += by_case
        results["dice by fold"].append(statistics.fmean(by_case))
    numbers = ", ".join(alone[0]["folds"])
    what = f"hippocampus, folds {numbers} of 5, mean Dice over cases, {len(seeds)} runs of {budget} each, averaged"
    claim = Claim.at_least(what, statistics.fmean(results["dice by case"]), ENSEMBLE)
    return [claim], results, {"budget": budget, "seeds": seeds}


def _together(runs: Sequence[Path], given: argparse.Namespace) -> list[float]:
    """Mean Dice of each validation case of one fold, on the image's own voxels, predicted by all runs."""
    import hasten
    from hasten.cache.case_set import read_cases

    cases = read_cases(hasten.load_run(runs[0] / "run.yaml"))[2]
    with tempfile.TemporaryDirectory(dir=given.work) as masks:
        hasten.predict(list(runs), [path for case in cases for path in case.image], masks, device="cpu")
        scores = hasten.evaluate(masks, given.data, surfaces=False)
    assert len(scores.cases) == len(cases)
    return list(scores.case_means("dice").values())


def _budget(given: argparse.Namespace) -> str:
    return "30s" if given.quick else str(given.budget)


def _folds_folder(given: argparse.Namespace, seed: int) -> Path:
    return Path(given.work, f"folds_{_budget(given)}" + (f"_seed{seed}" if seed else ""))


def learning(given: argparse.Namespace) -> Part:
    return _choices(given, CHOICES)


def recipe(given: argparse.Namespace) -> Part:
    claims, results, settings = _choices(given, RECIPE, _recipe_config)
    del settings["steps"]  # each choice has its own
    return claims, results, settings | {"fixed": "train.precision=fp32"}


def _choices(given: argparse.Namespace, choices: dict[str, str], config: Callable[..., Any] = _config) -> Part:
    results: dict[str, list[float]] = {}
    steps, seeds = (4, 1) if given.quick else (given.steps, given.seeds or 3)
    for seed in range(seeds):
        every = list(choices)[:1] if given.quick else list(choices)
        for name in every if seed == 0 else [name for name in given.choices or every if name in every]:
            print(f"  {name}, seed {seed}", file=sys.stderr)
            overrides = [] if given.quick else choices[name].split()
            results.setdefault(f"{name}/dice", []).append(_dice(given, config, name, overrides, steps, seed))
    return [], results, {"steps": steps, "split": SPLIT, "fixed": FIXED, "choices": choices}


def _dice(
    given: argparse.Namespace, config: Callable[..., Any], name: str, overrides: Sequence[str], steps: int, seed: int
) -> float:
    """Of the last validation: no choice gains by being validated more often."""
    import hasten

    asked = [*SPLIT, *FIXED, f"train.steps={steps}", f"train.validate_every={steps}", f"train.seed={seed}"]
    out = given.work / f"{name.replace(' ', '_').replace(':', '').replace(chr(39), '')}_{steps}_{seed}"
    if not (out / "summary.json").is_file():
        hasten.train(config(given, *asked, *overrides), out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return float([row["dice"] for row in rows if row["kind"] == "validation"][-1])


def start(given: argparse.Namespace) -> Part:
    """Each run is a process of its own; the first fills the cache and is not counted."""
    rounds, seconds = 2 if given.quick else 6, list[float]()
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "run"
            few = TINY if given.quick else ()
            command = [sys.executable, "-m", "hasten", "train", str(given.data), "--quiet", "--out", str(out),
                       f"cache.dir={given.work / 'cache'}", "train.steps=2", *few]  # fmt: skip
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            if number:
                seconds.append(float(next(row["time_s"] for row in rows if row["kind"] == "train")))
    what = "seconds from the start of the process to the end of the first steps, second run of a task, median"
    return [Claim.at_most(what, statistics.median(seconds), START_S)], {"first_step_s": seconds}, {}


def _summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content


PARTS = {"folds": folds, "ensemble": ensemble, "learning": learning, "recipe": recipe, "start": start}

if __name__ == "__main__":
    main()
