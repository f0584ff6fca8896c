"""Predicting from file to file: Hasten against MONAI and nnU-Net, with one network's weights in every arm.

Every arm works in a process of its own, in turns; imports and loading the network are not counted. Windows, overlap
and Gaussian blending are the same; a window at a time on a CPU, four on a GPU. What is measured is kept after each
turn. `end`: CT phantoms to label maps, with a network so small that it does not hide the rest (`--channels 32 64 128
256` for one of the usual size). `export`: the same without the network, from scores on the
prepared grid. `dice`: what the ways from these scores to the image's grid are worth, on thick slices, beside the
nearest prepared voxel's label. `memory`: peak beyond the network and the image with many classes. nnU-Net comes from
the folder `--nnunet` (`pip install --target FOLDER --no-deps nnunetv2 ...`), and is left out without it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Claim, Part, arguments, interleave, median_ratio, part_arguments, run_parts

SHAPE, QUICK_SHAPE = (300, 512, 512), (40, 64, 64)
"""(D, H, W) of the images, all of the same extent."""
SPACING, QUICK_SPACING = (2.0, 1.5, 1.5), (12.0, 8.0, 8.0)
THICK, QUICK_THICK = (90, 256, 256), (24, 96, 96)
"""Of the images of `dice`: 5 mm and 1.6 mm in full."""
ARMS = ("hasten", "monai", "nnunet", "nnunet_processes")
"""The last one in `end` alone: nnU-Net's default call, with processes for preparing and writing."""
ROUNDS = "predict_rounds.jsonl"
"""In --out while a measurement runs: a line for each turn of an arm, so that one that is stopped has left something."""
MEMORY = ("same", "resampled")


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        cases={"type": int, "help": "images of `end`; default 2, quick 1"},
        rounds={"type": int, "help": "turns of each arm; default 3, quick 1"},
        channels={"type": int, "nargs": "+", "default": [8, 16, 32], "help": "of the UNet"},
        steps={"type": int, "help": "steps that it is fitted for; default 150, quick 2"},
        arms={"nargs": "+", "choices": ARMS, "default": list(ARMS)},
        memory={"nargs": "+", "choices": MEMORY, "default": list(MEMORY), "help": "grids of `memory`"},
        planes={"type": int, "default": 600, "help": "of the prepared grid of `memory`, each of 512 x 512"},
        classes={"type": int, "default": 117, "help": "of `memory`"},
        gib={"type": float, "default": 1.5, "help": "of scores that `memory` may hold"},
        most_windows={"type": int, "help": "stop `memory` after so many; the first slabs hold as much as later ones"},
        nnunet={"type": Path, "help": "folder that nnunetv2 is installed in"},
        work={"type": Path, "help": "keep the phantoms and the fitted network here, and reuse what is there"},
        device={"default": "cpu", "help": "of `end`"},
    )  # fmt: skip
    if given.nnunet is None and any(arm.startswith("nnunet") for arm in given.arms):
        given.arms = [arm for arm in given.arms if not arm.startswith("nnunet")]
        print("without --nnunet its arm is left out")
    given.rounds = given.rounds or (1 if given.quick else 3)
    with tempfile.TemporaryDirectory() as scratch:
        given.work = given.work or Path(scratch)
        run_parts("predict", PARTS, given, __doc__)
    (given.out / ROUNDS).unlink(missing_ok=True)


def end(given: argparse.Namespace) -> Part:
    from benchmarks.predictions.scene import fitted_run

    quick = given.quick
    job = _job(given, "end", given.cases or (1 if quick else 2), QUICK_SHAPE if quick else SHAPE)
    window = (32, 32, 32) if quick else (96, 96, 96)
    steps, name = given.steps or (2 if quick else 150), "_".join(map(str, given.channels))
    work = given.work / f"{name}{'_quick' if quick else ''}"
    job["run"] = str(fitted_run(
        work, spacing=tuple(job["spacing"]), window=window, channels=tuple(given.channels), steps=steps
    ))  # fmt: skip
    return _compared("end", "end", given.arms, given, job)


def export(given: argparse.Namespace) -> Part:
    job = _job(given, "export", 1, QUICK_SHAPE if given.quick else SHAPE)
    _write_scores(job)
    return _compared("export", "export", _of_scores(given.arms), given, job)


def _of_scores(arms: Sequence[str]) -> list[str]:
    """Those that have a way from scores to a file of their own."""
    return [arm for arm in arms if arm != "nnunet_processes"]


def dice(given: argparse.Namespace) -> Part:
    job = _job(given, "dice", 1, QUICK_THICK if given.quick else THICK)
    _write_scores(job)
    results: dict[str, list[float]] = {}
    from benchmarks.predictions.child import measured

    # MONAI's grid has other corners, so that scores on it are not the same ones.
    arms = {arm: (arm, "export") for arm in _of_scores(given.arms) if arm != "monai"} | {
        "nearest": ("hasten", "nearest")
    }
    for name, (arm, what) in arms.items():
        out = f"{job['out']}/{name}"
        measured(arm, what, {**job, "out": out}, given.nnunet)
        results[f"{name}_dice"] = _dice(_written(out, job["names"][0]), _truth(job))
    medians = {name: statistics.median(results[f"{name}_dice"]) for name in arms}
    what = "thick slices: Dice gained by linear scores over the nearest prepared voxel's label"
    claims = [Claim.at_least(what, medians["hasten"] - medians["nearest"], 0.0)] if "hasten" in medians else []
    if {"hasten", "nnunet"} <= set(medians):
        what = "thick slices: Dice lost against nnU-Net's export"
        claims.append(Claim.at_most(what, medians["nnunet"] - medians["hasten"], 0.001))
    return claims, results, {"shape": job["shape"], "prepared": job["spacing"]}


def memory(given: argparse.Namespace) -> Part:
    """One run for each grid: the peak is the same each time."""
    from benchmarks.predictions.child import in_child

    quick = given.quick
    shape = [32, 48, 48] if quick else [given.planes, 512, 512]
    larger = {"same": shape, "resampled": [round(1.25 * side) for side in shape]}
    results: dict[str, list[float]] = {}
    for grid in given.memory:
        job = {
            "classes": 5 if quick else given.classes, "window": [16] * 3 if quick else [96] * 3, "overlap": 0.5,
            "shape": shape, "new_shape": larger[grid], "most_windows": given.most_windows,
            "sums_bytes": int(given.gib * 2**30),
        }  # fmt: skip
        for name, value in in_child("held", json.dumps(job)).items():
            results.setdefault(f"{grid}/{name}", []).append(value)
            _keep(given.out, part="memory", arm=grid, **{name: value})
    what = f"{given.classes} classes, {'x'.join(map(str, shape))}, "
    claims = [
        Claim.at_most(f"{what}{grid} grid: GiB beyond network and image", results[f"{grid}/mib"][0] / 1024, 2.0)
        for grid in given.memory
    ]
    return claims, results, {"shape": shape, "overlap": 0.5}


def _job(given: argparse.Namespace, part: str, cases: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """What an arm is told. The images are written unless they are there."""
    from benchmarks.predictions.scene import write_organs

    data = given.work / f"{part}_{cases}_{'x'.join(map(str, shape))}"
    if not (data / "dataset.json").exists():
        write_organs(data, cases, shape)
    images = sorted((data / "imagesTr").glob("*.nii.gz"))
    return {
        "images": [str(path) for path in images], "names": [path.name.removesuffix(".nii.gz") for path in images],
        "out": str(given.work / f"{part}_out"), "spacing": list(QUICK_SPACING if given.quick else SPACING),
        "device": given.device, "batch_size": 1 if given.device == "cpu" else 4, "shape": list(shape),
        "labels": str(data / "labelsTr"),
        "scores": str(data / "scores.npy"),
    }  # fmt: skip


def _compared(part: str, what: str, arms: Sequence[str], given: argparse.Namespace, job: dict[str, Any]) -> Part:
    """Seconds a case and peak MiB of each arm, and how much of the label maps agrees with Hasten's and the truth."""
    from benchmarks.predictions.child import measured

    peaks: dict[str, list[float]] = {f"{arm}_peak_mib": [] for arm in arms}

    def once(arm: str) -> float:
        found = measured(arm, what, {**job, "out": f"{job['out']}/{arm}"}, given.nnunet)
        peaks[f"{arm}_peak_mib"].append(found["mib"])
        _keep(given.out, part=part, arm=arm, **found)
        return found["seconds"] / len(job["images"])

    times = interleave({f"{arm}_s": partial(once, arm) for arm in arms}, given.rounds, warmup=0)
    maps = {arm: _written(f"{job['out']}/{arm}", job["names"][0]) for arm in arms}
    results = {**times, **peaks, **{f"{arm}_dice": _dice(found, _truth(job)) for arm, found in maps.items()}}
    claims = []
    for arm in arms:
        if arm == "hasten" or "hasten" not in arms:
            continue
        ratio = median_ratio(times[f"{arm}_s"], times["hasten_s"])
        claims.append(Claim.at_least(f"{part}: {arm} takes this many times Hasten's seconds", ratio, 1.0))
        share = median_ratio(peaks["hasten_peak_mib"], peaks[f"{arm}_peak_mib"])
        claims.append(Claim.at_most(f"{part}: Hasten's peak memory over {arm}'s", share, 1.0))
        results[f"{arm}_same_labels"] = [float((maps[arm] == maps["hasten"]).mean())]
    return claims, results, {"shape": job["shape"], "channels": given.channels, "cases": len(job["images"])}


def _keep(out: Path, **line: Any) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / ROUNDS).open("a") as file:
        file.write(f"{json.dumps(line)}\n")


def _write_scores(job: dict[str, Any]) -> None:
    """What a perfect network would give on the prepared grid."""
    from benchmarks.predictions.scene import organ_scores, spacing_of
    from hasten.prepare.resample import resampled_shape

    if Path(job["scores"]).exists():
        return
    shape = tuple(job["shape"])
    prepared = resampled_shape(shape, spacing_of(shape), tuple(job["spacing"]))
    np.save(job["scores"], organ_scores(prepared, 0))


def _truth(job: dict[str, Any]) -> np.ndarray:
    return _written(job["labels"], job["names"][0])


def _written(folder: str, name: str) -> np.ndarray:
    import nibabel as nib

    return np.asarray(nib.load(Path(folder) / f"{name}.nii.gz").dataobj)  # type: ignore[attr-defined]


def _dice(found: np.ndarray, truth: np.ndarray) -> list[float]:
    """Of each class but the background."""
    values = range(1, int(truth.max()) + 1)
    return [
        float(2 * ((found == value) & (truth == value)).sum() / ((found == value).sum() + (truth == value).sum()))
        for value in values
    ]


PARTS = {"end": end, "export": export, "dice": dice, "memory": memory}

if __name__ == "__main__":
    main()
