"""Dice by the time that a run is given, on data sets of several kinds, with no other setting.

Each run is `hasten train DATA train.budget=MINmin` in a process of its own with an empty cache; the time limit includes
imports, preparation, measuring, validation and the report. The Dice is that of the best weights on the validation
cases, on the images' own voxels. `--choices` compares settings with the plan; choose on another `--split` than the one
that is quoted (0). Cases of one patient (cardiac) are never on both sides of a split. Parts can be run one by one and
joined: `--merge` takes the files that earlier calls wrote. `at_0.33` is the best validation by a third of the time, on
the plan's grid (0: there was none yet), `worst_case` the Dice of the worst validation case there.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import phantoms
from benchmarks.harness import ROOT, Claim, arguments, busy_machine, child_environment, finish
from benchmarks.time_limit import SCAN, limited_run, merged
from hasten.evaluation.examples import EXAMPLES
from hasten.training.choose.budget import MORE

ABOUT = str(__doc__)
GOALS = {
    "left_atrium": {2: 0.86, 10: 0.913, 30: 0.920},
    "cardiac": {2: 0.80, 10: 0.875, 30: 0.895},
    "nuclei": {2: 0.910, 10: 0.925, 30: 0.930},
    "membrane": {},
    "hippocampus": {5: 0.8902},
    "phantoms": {},
}
"""Least Dice by minutes."""
VOLUMES = ("left_atrium", "cardiac", "hippocampus")
PEERS = ("fast", "segresnet")
"""MONAI's recipes, as `benchmarks.minutes` has them."""
SHARES = (0.1, 0.2, 0.33, 0.5)
"""Of the time: where the curve is quoted."""
SHOWN = ("prepare.spacing", "sample.patch", "sample.batch_size", "network.name", "network.channels", "train.steps")
"""Of the plan, with the reasons: what differs from set to set."""
CHOICES = {
    "plan": (),
    "own voxels": ("prepare.spacing=[0,0,0]",),
    "voxels x1.5": ("prepare.spacing=x1.5",),
    "voxels x2": ("prepare.spacing=x2",),
    "voxels x2.5": ("prepare.spacing=x2.5",),
    "voxels x3": ("prepare.spacing=x3",),
    "unet": ("network.name=unet",),
    "plainconvunet": ("network.name=plainconvunet",),
    "half the channels": ("network.name=plainconvunet", "network.channels=[8,16,32,64]"),
    "half the channels, voxels x1.5": (
        "network.name=plainconvunet",
        "network.channels=[8,16,32,64]",
        "prepare.spacing=x1.5",
    ),
    "strong augmentation": ("sample.rotate_deg=[30,30,30]", "sample.scale_range=[0.7,1.4]"),
    "mirrored": ("sample.flip_prob=[0.5,0.5,0.5]",),
    "half the learning rate": ("train.learning_rate=0.004",),
    "batch of 2": ("sample.batch_size=2",),
    "batch of 8": ("sample.batch_size=8",),
    "smaller patches at first": ("sample.stages=[[0.3,0.5],[0.6,0.75]]",),
    "five levels": ("network.channels=[16,32,64,128,256]",),
    "six levels": ("network.channels=[16,32,64,128,256,256]",),
}
"""Settings by name. `x2` is a spacing of which no side is below twice the data's finest."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        ABOUT.splitlines()[0], argv,
        sets={"nargs": "+", "choices": tuple(GOALS), "default": None, "help": "default all; quick: phantoms"},
        minutes={"nargs": "+", "type": float, "default": None, "help": "default 2 10; quick 0.5"},
        seeds={"nargs": "+", "type": int, "default": [0, 1, 2], "help": "train.seed of each round"},
        split={"type": int, "default": 0, "help": "data.split.seed; 0 is the one that is quoted"},
        choices={"nargs": "+", "choices": tuple(CHOICES), "default": ["plan"], "help": "settings to compare"},
        peers={"nargs": "*", "choices": PEERS, "default": [], "help": "MONAI's recipes beside them, on the volumes"},
        shared={"type": Path, "default": ROOT.parent / "shared" / "data", "help": "folder of the real data sets"},
        merge={"nargs": "+", "type": Path, "default": [], "help": "results of earlier calls to join; runs nothing"},
    )  # fmt: skip
    others = busy_machine()
    plans: dict[str, Any] = {}
    for file in given.merge:
        plans |= json.loads(file.read_text())["settings"].get("plans", {})
    results = merged(given.merge) if given.merge else measured(given, plans)
    settings = {"about": ABOUT, "split": given.split, "choices": CHOICES, "plans": plans}
    label = "any_data" if given.split == 0 else "any_data_choices"
    finish(label, claims(results, given.split), results, given.out, given.quick, settings=settings,
           others_before=others)  # fmt: skip


def measured(given: Namespace, plans: dict[str, Any]) -> dict[str, list[float]]:
    """The figures of each arm, by name and figure; seeds are rounds, which are interleaved.

    plans: receives the decisions of each arm's last run.
    """
    results: dict[str, list[float]] = {}
    names = given.sets or (("phantoms",) if given.quick else tuple(GOALS))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sources = {name: given.shared / name for name in names if (given.shared / name).exists()}
        if "phantoms" in names:
            sources["phantoms"] = phantoms(scratch / "set", 16, SCAN)
        for seed in given.seeds[:1] if given.quick else given.seeds:
            for minutes in given.minutes or ((0.5,) if given.quick else (2, 10)):
                for name, source in sources.items():
                    overrides = [*split_of(source, given.split), f"train.seed={seed}"]
                    for choice in (*given.choices, *(given.peers if name in VOLUMES else ())):
                        arm = f"{name}, {minutes:g} min, {choice}"
                        if choice in PEERS:
                            figures = run_peer(source, minutes, overrides, choice)
                        else:
                            figures, plans[arm] = run(source, minutes, overrides, choice)
                        print(f"{seed} {arm}: {figures}", file=sys.stderr)
                        for figure, value in figures.items():
                            results.setdefault(f"{arm}/{figure}", []).append(value)
    return results


def split_of(source: Path, seed: int) -> list[str]:
    """A fifth of the cases, or where two files are of one patient, of the patients."""
    cases = sorted(path.name.split(".")[0] for path in source.glob("imagesTr/*.nii.gz"))
    patients = sorted({case.split("_frame")[0] for case in cases})
    if len(patients) == len(cases):
        return ["data.split.by=fraction", "data.split.fraction=0.2", f"data.split.seed={seed}"]
    random.Random(seed).shuffle(patients)
    held_out = patients[: len(patients) // 5]
    return [f"data.split.validation={json.dumps([case for case in cases if case.split('_frame')[0] in held_out])}"]


def run(source: Path, minutes: float, overrides: Sequence[str], choice: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of `limited_run`, the planned steps that should fit, further shares of the limit and the curve; and
    the plan: of each setting of `SHOWN` its value and reason."""
    seconds = 60 * minutes
    chosen = [text if "=x" not in text else coarser(source, text) for text in CHOICES[choice]]
    with tempfile.TemporaryDirectory() as folder:
        figures, summary = limited_run(source, seconds, Path(folder), [*overrides, *chosen])
        out = Path(folder) / "run"
        decided = json.loads((out / "plan.json").read_text())["decisions"] if summary else {}
        curve = curve_of(out, seconds) if summary else {}
    spans = summary.get("seconds", {})
    figures |= {
        "planned": decided.get("train.steps", {}).get("value", 0) / MORE,
        "in_validations": spans.get("validate", 0.0) / seconds,
        "in_tuning": (spans.get("tune", 0.0) + spans.get("compile", 0.0)) / seconds,
        "finest_mm": min(decided.get("prepare.spacing", {}).get("value", [0.0])),
        "patch_voxels": float(math.prod(decided.get("sample.patch", {}).get("value", [0]))),
    }
    plan = {name: {key: decided[name][key] for key in ("value", "reason")} for name in SHOWN if name in decided}
    return figures | curve, plan


def curve_of(out: Path, seconds: float) -> dict[str, float]:
    """Of a run of so many seconds: the best validation by each of `SHARES` of them, and the worst case's Dice."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seen = [(line["time_s"], line["dice"]) for line in lines if line["kind"] == "validation"]
    best = {f"at_{share:g}": max((d for at, d in seen if at <= share * seconds), default=0.0) for share in SHARES}
    if (out / EXAMPLES).exists():  # no time was left to make them otherwise
        with np.load(out / EXAMPLES) as examples:
            best["worst_case"] = float(examples["dice_0"])
    return best


def run_peer(source: Path, minutes: float, overrides: Sequence[str], recipe: str) -> dict[str, float]:
    """One of MONAI's recipes in the same time, on the same cases, at the spacing and patch that the plan chooses."""
    from hasten import load_run
    from hasten.training.plan import plan_run

    config = load_run(overrides=[f"data.source={source}", f"train.budget={60 * minutes:g}s", *overrides])
    planned = plan_run(config)
    spacing, patch = planned.config.prepare.spacing, planned.config.sample.patch
    if recipe == "segresnet":  # which halves every side three times
        patch = tuple(-(-side // 8) * 8 for side in patch)  # type: ignore[assignment]
    command = [sys.executable, "-m", "benchmarks.minutes", str(source), "--recipe", recipe, "--seconds",
               f"{60 * minutes:g}", "--seed", str(config.train.seed), "--spacing", *map(str, spacing or (0, 0, 0)),
               "--patch", *map(str, patch), "--validation", *(case.id for case in planned.validation)]  # fmt: skip
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures | {"ended": figures["seconds"] / (60 * minutes)}


def coarser(source: Path, text: str) -> str:
    """`prepare.spacing=x2` for this data set."""
    from hasten import load_run, make_plan
    from hasten.config.fingerprint import coarser_spacing

    name, _, factor = text.partition("=x")
    spacings = make_plan(load_run(overrides=[f"data.source={source}"]))["fingerprint"]["spacings"]
    return f"{name}={json.dumps(coarser_spacing(tuple(spacings[0]['value']), float(factor)))}"


def claims(results: Mapping[str, Sequence[float]], split: int) -> list[Claim]:
    """What is claimed of the arms that were run, on the split that is quoted."""
    made: list[Claim] = []
    for series, values in results.items():
        name, _, figure = series.rpartition("/")
        data, minutes, choice = name.split(", ")
        goal = GOALS[data].get(int(float(minutes.split()[0])))
        if figure == "dice" and goal is not None and choice == "plan" and split == 0:
            made.append(
                Claim.at_least(f"{data}, {minutes}: mean Dice of n={len(values)}", statistics.mean(values), goal)
            )
    return made


if __name__ == "__main__":
    main()
