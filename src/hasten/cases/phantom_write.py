"""Writes phantom cases as data sets, several in parallel."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.cases.nifti import write_nifti
from hasten.files import naming

Make = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""The image and label of a case by its index."""


def write_volumes(
    out: Path,
    names: Sequence[str],
    make: Make,
    *,
    title: str,
    channels: Sequence[str],
    labels: Mapping[int, str],
    spacing: tuple[float, float, float],
    num_threads: int = 2,
) -> Path:
    """A Decathlon folder of what `make` gives: image (D, H, W) or (C, D, H, W), label (D, H, W); returns `out`.

    `spacing` (D, H, W) is in mm. dataset.json comes last: where it is, the data set is whole.
    """
    folders = ("imagesTr", "labelsTr")
    for folder in folders:
        (out / folder).mkdir(parents=True, exist_ok=True)
    affine = np.diag([*spacing[::-1], 1.0])

    def write(index: int) -> None:
        for folder, array in zip(folders, make(index), strict=True):
            write_nifti(out / folder / f"{names[index]}.nii.gz", array, affine)

    _run_parallel(write, len(names), num_threads, out)
    _write_json(out / "dataset.json", {
        "name": "Phantom",
        "description": title,
        "tensorImageSize": "4D" if len(channels) > 1 else "3D",
        "modality": {str(index): name for index, name in enumerate(channels)},
        "labels": {str(value): name for value, name in labels.items()},
        "numTraining": len(names),
        "numTest": 0,
        "training": [{"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names],
        "test": [],
    })  # fmt: skip
    return out


def write_pictures(
    out: Path, names: Sequence[str], make: Make, *, labels: Mapping[int, str], num_threads: int = 2
) -> Path:
    """images/ and labels/ of 8-bit PNG files of what `make` gives, (H, W) uint8 each, and labels.json; gives `out`."""
    folders = ("images", "labels")
    for folder in folders:
        (out / folder).mkdir(parents=True, exist_ok=True)

    def write(index: int) -> None:
        for folder, array in zip(folders, make(index), strict=True):
            Image.fromarray(array).save(out / folder / f"{names[index]}.png", compress_level=1)

    _run_parallel(write, len(names), num_threads, out)
    _write_json(out / "labels.json", {str(value): name for value, name in labels.items()})
    return out


def numbered(stem: str, count: int) -> list[str]:
    """`stem_000`, `stem_001`, ...: names that sort by their number."""
    return [f"{stem}_{index:03d}" for index in range(count)]


def _run_parallel(write: Callable[[int], None], count: int, num_threads: int, out: Path) -> None:
    with naming(out), ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(write, range(count)))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    with naming(path):
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
