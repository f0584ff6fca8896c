"""Predicting from file to file: Hasten against MONAI and nnU-Net, with one network's weights in every arm.

Every arm works in a process of its own, in turns; imports and loading the network are not counted. Windows, overlap,
Gaussian blending and the network's precision (bf16) are the same; a window at a time on a CPU, four on a GPU. `end`: CT
phantoms to label maps, other phantoms in each round, with a network so small that it does not hide the rest
(`--channels 32 64 128 256` for one of the usual size). `memory`: peak beyond the network and the image with many
classes, of the first band of the volume. nnU-Net comes from the folder `--nnunet` (`pip install --target FOLDER
--no-deps nnunetv2 ...`), and is left out without it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Claim, Part, arguments, in_child, median_ratio, part_arguments, run_parts

SHAPE, QUICK_SHAPE = (300, 512, 512), (40, 64, 64)
"""(D, H, W) of the images, all of the same extent."""
SPACING, QUICK_SPACING = (2.0, 1.5, 1.5), (12.0, 8.0, 8.0)
ARMS = ("hasten", "monai", "nnunet_processes")
"""The last one is nnU-Net's default call, with processes for preparing and writing."""
MEMORY = ("same", "resampled")
FASTER = 3.0
"""How many times Hasten's seconds each arm shall take."""
SHARE = 0.25
"""Of the other arms' peak memory that Hasten's shall be."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        cases={"type": int, "help": "images of `end`, dealt out to its rounds; default 10, quick 1"},
        rounds={"type": int, "help": "turns of each arm; default 5, quick 1"},
        channels={"type": int, "nargs": "+", "default": [8, 16, 32], "help": "of the UNet"},
        overlap={"type": float, "default": 0.5, "help": "of windows"},
        steps={"type": int, "help": "steps that it is fitted for; default 150, quick 2"},
        arms={"nargs": "+", "choices": ARMS, "default": list(ARMS)},
        memory={"nargs": "+", "choices": MEMORY, "default": list(MEMORY), "help": "grids of `memory`"},
        planes={"type": int, "default": 600, "help": "of the prepared grid of `memory`, each of 512 x 512"},
        classes={"type": int, "default": 117, "help": "of `memory`"},
        gib={"type": float, "default": 1.25, "help": "of scores that `memory` may hold"},
        most_windows={"type": int, "help": "stop each band of `memory` after so many windows: a trial"},
        nnunet={"type": Path, "help": "folder that nnunetv2 is installed in"},
        work={"type": Path, "help": "keep phantoms and the fitted network here; what is there is used"},
        device={"default": "cpu", "help": "of `end`"},
    )  # fmt: skip
    if given.nnunet is None and "nnunet_processes" in given.arms:
        given.arms = [arm for arm in given.arms if arm != "nnunet_processes"]
        print("without --nnunet its arm is left out")
    given.rounds = given.rounds or (1 if given.quick else 5)
    given.cases = given.cases or (1 if given.quick else 10)
    with tempfile.TemporaryDirectory() as scratch:
        given.work = given.work or Path(scratch)
        run_parts("predict", PARTS, given, __doc__)


def end(given: argparse.Namespace) -> Part:
    from benchmarks.predictions.scene import fitted_run

    quick = given.quick
    job = _job(given, given.cases, QUICK_SHAPE if quick else SHAPE)
    window = (32, 32, 32) if quick else (96, 96, 96)
    steps, name = given.steps or (2 if quick else 150), "_".join(map(str, given.channels))
    work = given.work / f"{name}{'_quick' if quick else ''}"
    job["run"] = str(fitted_run(
        work, spacing=tuple(job["spacing"]), window=window, channels=tuple(given.channels), steps=steps
    ))  # fmt: skip
    images, names = job["images"], job["names"]
    each = max(1, given.cases // given.rounds)
    dealt = [[(number * each + case) % len(images) for case in range(each)] for number in range(given.rounds)]
    jobs = [{**job, "images": [images[n] for n in of], "names": [names[n] for n in of]} for of in dealt]
    return _compared(given, jobs)


def memory(given: argparse.Namespace) -> Part:
    """The first band of each grid: the peak of the others is the same."""
    quick = given.quick
    shape = [32, 48, 48] if quick else [given.planes, 512, 512]
    larger = {"same": shape, "resampled": [round(1.25 * side) for side in shape]}
    jobs = {
        grid: {
            "classes": 5 if quick else given.classes, "window": [16] * 3 if quick else [96] * 3, "overlap": 0.5,
            "shape": shape, "new_shape": larger[grid], "most_windows": given.most_windows,
            "sums_bytes": int(given.gib * 2**30),
        }
        for grid in given.memory
    }  # fmt: skip
    results: dict[str, list[float]] = {}
    for grid, job in jobs.items():
        for name, value in in_child("benchmarks.predictions.held", json.dumps(job)).items():
            results[f"{grid}/{name}"] = [value]
    what = f"{given.classes} classes, {'x'.join(map(str, shape))}, "
    claims = [
        Claim.at_most(f"{what}{grid} grid: GiB beyond network and image", max(results[f"{grid}/mib"]) / 1024, 2.0)
        for grid in given.memory
    ]
    return claims, results, {"shape": shape, "overlap": 0.5}


def _job(given: argparse.Namespace, cases: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """What an arm is told. The images are written unless they are there."""
    from benchmarks.predictions.scene import write_organs

    data = given.work / f"end_{cases}_{'x'.join(map(str, shape))}"
    if not (data / "dataset.json").exists():
        write_organs(data, cases, shape)
    images = sorted((data / "imagesTr").glob("*.nii.gz"))
    return {
        "images": [str(path) for path in images], "names": [path.name.removesuffix(".nii.gz") for path in images],
        "out": str(given.work / "end_out"), "spacing": list(QUICK_SPACING if given.quick else SPACING),
        "device": given.device, "batch_size": 1 if given.device == "cpu" else 4, "shape": list(shape),
        "labels": str(data / "labelsTr"), "overlap": given.overlap,
    }  # fmt: skip


def _compared(given: argparse.Namespace, jobs: Sequence[dict[str, Any]]) -> Part:
    """Seconds a case and peak MiB of each arm, and how much of the label maps agrees with Hasten's and the truth.

    jobs: one for each round.
    """
    from benchmarks.predictions.child import measured

    arms = given.arms

    def once(arm: str, job: dict[str, Any]) -> dict[str, Any]:
        out, name = f"{job['out']}/{arm}", job["names"][0]
        figures = measured(arm, {**job, "out": out}, given.nnunet)
        label, truth = _written(out, name), _written(job["labels"], name)
        same = {}
        if arm != "hasten" and "hasten" in arms:
            same["same_labels"] = float((label == _written(f"{job['out']}/hasten", name)).mean())
        seconds = figures["seconds"] / len(job["images"])
        return {"s": seconds, "peak_mib": figures["mib"], **same, "dice": _dice(label, truth)}

    used = {"shape": jobs[0]["shape"], "channels": given.channels, "overlap": given.overlap, "device": given.device}
    used |= {"cases": len(jobs[0]["images"]), "rounds": len(jobs)}
    results: dict[str, list[float]] = {}
    for arm, job in ((arm, job) for job in jobs for arm in arms):
        for name, value in once(arm, job).items():
            results.setdefault(f"{arm}_{name}", []).extend(value if isinstance(value, list) else [value])
    claims = []
    for arm in arms:
        if arm == "hasten" or "hasten" not in arms:
            continue
        ratio = median_ratio(results[f"{arm}_s"], results["hasten_s"])
        claims.append(Claim.at_least(f"end: {arm} takes this many times Hasten's seconds", ratio, FASTER))
        share = median_ratio(results["hasten_peak_mib"], results[f"{arm}_peak_mib"])
        claims.append(Claim.at_most(f"end: Hasten's peak memory over {arm}'s", share, SHARE))
    return claims, results, used


def _written(folder: str, name: str) -> np.ndarray:
    import nibabel as nib

    return np.asarray(nib.load(Path(folder) / f"{name}.nii.gz").dataobj)  # type: ignore[attr-defined]


def _dice(result: np.ndarray, truth: np.ndarray) -> list[float]:
    """Of each class but the background."""
    values = range(1, int(truth.max()) + 1)
    return [
        float(2 * ((result == value) & (truth == value)).sum() / ((result == value).sum() + (truth == value).sum()))
        for value in values
    ]


PARTS = {"end": end, "memory": memory}

if __name__ == "__main__":
    main()
