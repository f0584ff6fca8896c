"""Shared by the phantoms: cases written as data sets, several in parallel, and smooth random fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

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
    """Write a Decathlon folder of what `make` returns: image (D, H, W) or (C, D, H, W), label (D, H, W); returns `out`.

    `spacing` (D, H, W) is in mm. dataset.json comes last: where it is, the data set is whole.
    """
    folders = ("imagesTr", "labelsTr")
    for folder in folders:
        (out / folder).mkdir(parents=True, exist_ok=True)
    affine = np.diag([*spacing[::-1], 1.0])

    def write(index: int) -> None:
        for folder, array in zip(folders, make(index), strict=True):
            write_nifti(out / folder / f"{names[index]}.nii.gz", array, affine)

    run_parallel(write, len(names), num_threads, out)
    write_json(
        out / "dataset.json",
        {
            "name": "Phantom",
            "description": title,
            "tensorImageSize": "4D" if len(channels) > 1 else "3D",
            "modality": {str(index): name for index, name in enumerate(channels)},
            "labels": {str(value): name for value, name in labels.items()},
            "numTraining": len(names),
            "numTest": 0,
            "training": [
                {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names
            ],
            "test": [],
        },
    )
    return out


def numbered(stem: str, count: int) -> list[str]:
    """`stem_000`, `stem_001`, ...: names that sort by their number. Raises ValueError below 1."""
    if count < 1:
        raise ValueError(f"phantoms: num_cases is {count}; needs at least 1.")
    return [f"{stem}_{index:03d}" for index in range(count)]


def run_parallel(write: Callable[[int], None], count: int, num_threads: int, out: Path) -> None:
    """Call `write` with each number below `count`, on several threads. An OSError names `out`."""
    with naming(out), ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(write, range(count)))


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write `content` as readable JSON. An OSError names `path`."""
    with naming(path):
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def smooth_field(rng: np.random.Generator, shape: tuple[int, ...], scale: tuple[float, ...] | float) -> np.ndarray:
    """A random field of `shape` (any number of axes), float32, mean 0 and standard deviation about 1.

    It varies over `scale` voxels, which may differ from axis to axis: cubic splines through white noise.
    """
    scales = scale if isinstance(scale, tuple) else (scale,) * len(shape)
    knots = [max(4, round(size / step) + 3) for size, step in zip(shape, scales, strict=True)]
    field = rng.standard_normal(knots, np.float32)
    for axis, (size, count) in enumerate(zip(shape, knots, strict=True)):
        weights = _spline(size, count)
        field = np.moveaxis(np.tensordot(weights, field, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(field)


def _spline(size: int, num_knots: int) -> np.ndarray:
    """(size, num_knots) weights of a cubic B-spline, each row of unit norm so that noise keeps its strength."""
    place = np.linspace(1, num_knots - 2, size)[:, None]
    t = np.abs(place - np.arange(num_knots))
    near, far = 2 / 3 - t * t + t**3 / 2, np.clip(2 - t, 0, None) ** 3 / 6
    weights = np.where(t < 1, near, far)
    return (weights / np.sqrt((weights**2).sum(1, keepdims=True))).astype(np.float32)
