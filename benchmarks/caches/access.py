"""Item access: seconds an item of a warm data set of each kind, on one thread, Hasten's class against MONAI's.

`volume` (96^3) and `tile` (256^2, 2-D): the random part of the chain does nothing, so that what the class itself takes
is seen. `crop`: the spleen tutorial's chain on eight of the scans: RandCropByPosNegLabeld, four crops of 96^3, from
cached foreground and background indices. `flip`: the volumes with a RandFlipd that always flips; MONAI's flipping of
the volume is most of that in both arms, so nothing is claimed. Both classes get the same chain, and all that an item
holds is then read, so that memory that is only mapped has been paid for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.caches.outcome import SPACING, Outcome
from benchmarks.harness import Claim, interleave, median_ratio

KINDS = ("CacheDataset", "PersistentDataset", "LMDBDataset")


def measure(data: Path, folder: Path, rounds: int, quick: bool) -> Outcome:
    small = 24 if quick else 96
    boxes, tiles = volumes(folder / "boxes", 12, (small,) * 3), volumes(folder / "tiles", 64, (1, 256, 256))
    sets: dict[str, tuple[list[dict[str, str]], list[Any], int]] = {
        "volume": (boxes, [*loading(), nothing()], 4),
        "tile": (tiles, [*loading(), nothing()], 4),
        "crop": (scans(data)[: 3 if quick else 8], crop_chain(), 1),
        "flip": (boxes, [*loading(), flip()], 1),
    }
    outcome = Outcome()
    for name, (rows, chain, repeats) in sets.items():
        arms: dict[str, Callable[[], float]] = {}
        for kind in KINDS:
            for who in ("monai", "hasten"):
                dataset = make(kind, who, rows, chain, folder / f"{name}_{who}_{kind}")
                epoch(dataset, 1)
                arms[f"access/{name}_{who}_{kind}_s"] = partial(epoch, dataset, repeats)
        outcome.results.update(interleave(arms, max(rounds, 2 if quick else 7)))
        for kind in KINDS if name != "flip" else ():
            theirs, ours = (outcome.results[f"access/{name}_{who}_{kind}_s"] for who in ("monai", "hasten"))
            text = f"item access ({name}): MONAI's {kind} takes this many times Hasten's"
            outcome.claims.append(Claim.at_least(text, median_ratio(theirs, ours), 2))
    return outcome


def epoch(dataset: Any, repeats: int) -> float:
    """Seconds an item."""
    import torch

    begin = time.perf_counter()
    for _ in range(repeats):
        for number in range(len(dataset)):
            result = dataset[number]
            for each in result if isinstance(result, list) else [result]:
                # Without MONAI's bookkeeping, which takes longer than reading a tile.
                with torch._C.DisableTorchFunctionSubclass():
                    each["image"].sum()
                    each["label"].sum()
    return (time.perf_counter() - begin) / (repeats * len(dataset))


def scans(data: Path) -> list[dict[str, str]]:
    from benchmarks.tasks import bench_task, rows_of_all

    return rows_of_all(bench_task(data, "ct"))


def crop_chain() -> list[Any]:
    from benchmarks.ladder.chain import deterministic, random_crop
    from benchmarks.tasks import bench_task

    task = bench_task(None, "ct", spacing=SPACING, patch=(96, 96, 96))
    return [*deterministic(task, pad=True, indices=True), random_crop(task)]


def loading() -> list[Any]:
    from monai.transforms import EnsureChannelFirstd, LoadImaged, ScaleIntensityd

    return [LoadImaged(["image", "label"]), EnsureChannelFirstd(["image", "label"]), ScaleIntensityd("image")]


def flip() -> Any:
    from monai.transforms import RandFlipd

    return RandFlipd(["image", "label"], 1.0, spatial_axis=1)


def nothing() -> Any:
    """A random transform that changes nothing."""
    from monai.transforms import RandomizableTransform

    class Nothing(RandomizableTransform):  # type: ignore[misc]
        def __call__(self, item: Any) -> Any:
            return item

    return Nothing()


def volumes(folder: Path, count: int, shape: tuple[int, ...]) -> list[dict[str, str]]:
    import numpy as np

    from hasten.cases.nifti import write_nifti

    rows = []
    for number in range(count):
        image = np.random.default_rng(number).normal(size=shape).astype(np.float32)
        row = {"image": folder / f"i{number}.nii", "label": folder / f"l{number}.nii"}
        write_nifti(row["image"], image, np.eye(4))
        write_nifti(row["label"], (image > 1).astype(np.uint8), np.eye(4))
        rows.append({key: str(path) for key, path in row.items()})
    return rows


def make(kind: str, who: str, rows: list[dict[str, str]], chain: list[Any], cache: Path) -> Any:
    import monai.data
    from monai.transforms import Compose

    import hasten

    maker = getattr(hasten if who == "hasten" else monai.data, kind)
    return maker(rows, Compose(chain), progress=False) if kind == "CacheDataset" else maker(rows, Compose(chain), cache)
