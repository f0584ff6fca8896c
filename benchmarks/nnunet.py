"""nnU-Net's own trainer against nnUNetTrainerHasten: the same plans, cases, network and schedule.

Every turn is a process of its own that starts a training; arms take turns. `hippocampus`: nnU-Net's own 3d_fullres plan
of it. `plane`: its 2d plan, with a smaller batch. `spleen`: CT-sized phantoms with half of the patch's sides and
features that nnU-Net plans for Decathlon's spleen. Each gives seconds of an iteration, and of those how long it waited
for data; the same iteration on one fixed batch; seconds from the start of the process to the end of the first
iteration; and the peak memory of all processes. Trainers are imported by name, without nnU-Net's search, in both arms.
`curves`: the loss of 300 iterations with their whole schedule and the Dice of the validation that follows, for five
seeds each; `schedule`: the same of 1,200 iterations and two seeds, enough to find the structures. nnU-Net 2.8 is in
the folder `--nnunet` (`pip install --target FOLDER nnunetv2`).
With `--work` and `--minutes` a run is made in slices: what was measured at this commit is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.data import CT, QUICK_CT, SMALL, phantoms
from benchmarks.harness import Claim, Part, arguments, interleave, median_ratio, part_arguments, run_parts
from benchmarks.nnunets.tree import in_child
from hasten.observe.cores import usable_cores

TRAINERS = {"nnunet": "nnUNetTrainer", "hasten": "nnUNetTrainerHasten", "fixed": "nnUNetTrainer"}
TINY = {"features": [4, 8], "batch_size": 2}
SCENES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "hippocampus": (101, "3d_fullres", {}),
    "plane": (102, "2d", {"batch_size": 12}),
    "spleen": (103, "3d_fullres", {"shrink": 2, "features": [16, 32, 64, 128, 160]}),
    "curves": (104, "3d_fullres", {"features": [8, 16, 32, 64]}),
}
"""Number of nnU-Net's data set, its configuration, and what is changed of its plan."""
SERIES = ("start_s", "iteration_s", "median_s", "wait_s", "mib")


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        nnunet={"type": Path, "required": True, "help": "folder that nnunetv2 is installed in"},
        work={"type": Path, "help": "keep preprocessed cases here, and reuse what is there"},
        minutes={"type": float, "help": "stop before a turn that would begin later; with --work, run again to go on"},
        rounds={"type": int, "help": "turns of each arm; default 5, quick 1"},
        steps={"type": int, "help": "timed iterations of a turn; default 20, quick 2"},
        cases={"type": int, "help": "of the hippocampus; default 60, quick 6"},
        seeds={"type": int, "help": "of `curves` and `schedule`; default 5 and 2, quick 1"},
        iterations={"type": int, "help": "of `curves` and `schedule`; default 300 and 1200, quick 4"},
        workers={"type": int, "default": usable_cores(), "help": "loader processes of nnU-Net"},
        threads={"type": int, "default": usable_cores(), "help": "of torch"},
        device={"default": "cpu"},
    )  # fmt: skip
    quick = given.quick
    defaults = {"rounds": (5, 1), "steps": (20, 2), "cases": (60, 6)}
    for name, (full, few) in defaults.items():
        setattr(given, name, getattr(given, name) or (few if quick else full))
    if not (given.nnunet / "nnunetv2").is_dir():
        raise SystemExit(f"--nnunet {given.nnunet}: no nnunetv2 there; pip install --target {given.nnunet} nnunetv2")
    given.nnunet = given.nnunet.resolve()
    given.deadline = time.monotonic() + 60 * given.minutes if given.minutes else math.inf
    with tempfile.TemporaryDirectory() as scratch:
        given.work = (given.work or Path(scratch)).resolve()
        run_parts("nnunet", PARTS, given, __doc__)


def hippocampus(given: argparse.Namespace) -> Part:
    return _timed(given, "hippocampus", _prepared(given, "hippocampus"))


def plane(given: argparse.Namespace) -> Part:
    return _timed(given, "2d", _prepared(given, "plane"))


def spleen(given: argparse.Namespace) -> Part:
    return _timed(given, "spleen-like", _prepared(given, "spleen"))


def curves(given: argparse.Namespace) -> Part:
    return _curves(given, given.seeds or (1 if given.quick else 5), given.iterations or (4 if given.quick else 300))


def schedule(given: argparse.Namespace) -> Part:
    return _curves(given, given.seeds or (1 if given.quick else 2), given.iterations or (4 if given.quick else 1200))


def _curves(given: argparse.Namespace, seeds: int, iterations: int) -> Part:
    job = _prepared(given, "curves")
    results: dict[str, list[float]] = {}
    epochs = min(6, iterations)
    for seed in range(seeds):
        for arm in ("nnunet", "hasten"):
            words = {**job, "trainer": TRAINERS[arm], "seed": seed, "epochs": epochs, "iterations": iterations}
            result = _child(given, "curve", words)
            results[f"{arm}/seed {seed}/loss"] = result["losses"]
            results.setdefault(f"{arm}/dice", []).append(result["dice"])
            last = result["losses"][-max(1, len(result["losses"]) // 6) :]
            results.setdefault(f"{arm}/last_loss", []).append(statistics.mean(last))
    claims = [
        Claim.at_most(
            f"{iterations} iterations: {what} apart, in deviations over seeds",
            _apart(results[f"nnunet/{name}"], results[f"hasten/{name}"]), 2.0,
        )
        for what, name in (("mean loss of the last sixth", "last_loss"), ("Dice", "dice"))
        if any(results[f"{arm}/{name}"] != [0.0] * seeds for arm in ("nnunet", "hasten"))  # a Dice of 0 says nothing
    ]  # fmt: skip
    return claims, results, job


def _timed(given: argparse.Namespace, name: str, job: dict[str, Any]) -> Part:
    results: dict[str, list[float]] = {f"{arm}/{each}": [] for arm in TRAINERS for each in SERIES}

    def once(arm: str) -> float:
        words = {**job, "trainer": TRAINERS[arm], "fixed": arm == "fixed", "steps": given.steps, "warm_up": 2}
        result = _child(given, "turn", words, number=len(results[f"{arm}/start_s"]))
        for each in SERIES:
            results[f"{arm}/{each}"].append(result[each])
        return result["iteration_s"]

    interleave({arm: partial(once, arm) for arm in TRAINERS}, given.rounds, warmup=0)
    share = statistics.median(
        wait / whole for wait, whole in zip(results["hasten/wait_s"], results["hasten/iteration_s"], strict=True)
    )
    theirs, mine, bare = (results[f"{arm}/iteration_s"] for arm in ("nnunet", "hasten", "fixed"))
    claims = [
        Claim.at_most(f"{name}: share of an iteration that waits for data", share, 0.02),
        Claim.at_least(f"{name}: nnU-Net's iteration over Hasten's", median_ratio(theirs, mine), 1.0),
        Claim.at_most(f"{name}: Hasten's iteration over that on a fixed batch", median_ratio(mine, bare), 1.02),
    ]
    for what, series in (("seconds to the first iteration", "start_s"), ("peak memory of all processes", "mib")):
        ratio = median_ratio(results[f"hasten/{series}"], results[f"nnunet/{series}"])
        claims.append(Claim.at_most(f"{name}: {what}, Hasten's over nnU-Net's", ratio, 0.5))
    return claims, results, job


def _child(given: argparse.Namespace, what: str, words: dict[str, Any], number: int = 0) -> dict[str, Any]:
    if time.monotonic() > given.deadline:
        raise SystemExit(f"--minutes {given.minutes:g} are over; the same command goes on from here")
    return in_child(what, words, nnunet=given.nnunet, work=given.work, number=number)


def _prepared(given: argparse.Namespace, scene: str) -> dict[str, Any]:
    """What a child is told, with the cases preprocessed for it."""
    number, configuration, changes = SCENES[scene]
    dataset = f"Dataset{number}_{scene}"
    job: dict[str, Any] = {
        "id": number, "dataset": dataset, "configuration": configuration, "device": given.device,
        "changes": {**changes, **TINY} if given.quick else changes, "workers": given.workers,
        "threads": given.threads, "folder": _trainers(),
    }  # fmt: skip
    known = given.work / "nnUNet_preprocessed" / dataset / "bench_settings.json"
    if not known.exists():
        _write_raw(_source(given, scene), given.work / "nnUNet_raw" / dataset, given.cases)
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(json.dumps(_child(given, "plan", job)))
    return {**job, **json.loads(known.read_text())}


def _trainers() -> str:
    from hasten.cli.nnunet import trainer_folder

    return str(trainer_folder())


def _source(given: argparse.Namespace, scene: str) -> Path:
    """A Decathlon folder."""
    if scene != "spleen" and given.data:
        return Path(given.data)
    size = SMALL if scene != "spleen" else QUICK_CT if given.quick else CT
    target = given.work / f"phantoms_{scene}"
    return target if target.exists() else phantoms(target, 6, size)


def _write_raw(source: Path, folder: Path, count: int) -> None:
    """The first cases of a Decathlon folder as nnU-Net's raw data, by links."""
    described = json.loads((source / "dataset.json").read_text())
    names = sorted(path.name for path in (source / "labelsTr").glob("[!.]*.nii.gz"))[:count]
    for kind, ending in (("imagesTr", "_0000.nii.gz"), ("labelsTr", ".nii.gz")):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name in names:
            link = folder / kind / name.replace(".nii.gz", ending)
            if not link.exists():
                link.symlink_to((source / kind / name).resolve())
    content = {
        "channel_names": {"0": "CT" if "phantoms" in source.name else "MRI"}, "numTraining": len(names),
        "labels": {name: int(value) for value, name in described["labels"].items()}, "file_ending": ".nii.gz",
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(content))


def _apart(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Difference of the means in units of the deviation of that difference."""
    if len(one) < 2:
        return None
    spread = (statistics.variance(one) / len(one) + statistics.variance(other) / len(other)) ** 0.5
    return abs(statistics.mean(one) - statistics.mean(other)) / max(spread, 1e-12)


PARTS = {"hippocampus": hippocampus, "plane": plane, "spleen": spleen, "curves": curves, "schedule": schedule}

if __name__ == "__main__":
    main()
