"""A small data set of bright boxes, which a few steps of training can tell apart."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np


def write_boxes(
    folder: Path,
    *,
    count: int,
    shape: tuple[int, ...],
    channels: int = 1,
    values: tuple[int, int] = (1, 2),
    air: bool = True,
) -> Path:
    """A Decathlon folder of `count` images (x, y, z), or (x, y), with two bright boxes; `air` lies at x = 0."""
    rng = np.random.default_rng(0)
    listing = []
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for index in range(count):
        label = np.zeros(shape, np.uint8)
        start = [side // 4 + int(rng.integers(0, 3)) for side in shape]
        for number, value in enumerate(values):
            box = [slice(first, first + 6) for first in start]
            box[0] = slice(start[0] + 7 * number, start[0] + 7 * number + 6)
            label[tuple(box)] = value
        image = rng.normal(0, 10, (*shape, channels)) + 60 * (label > 0)[..., None]
        if air:
            image[0] = -1000
        name = f"case_{index:03d}.nii.gz"
        image = image if channels > 1 else image[..., 0]
        nib.save(nib.Nifti1Image(image.astype(np.int16), np.eye(4)), folder / "imagesTr" / name)
        nib.save(nib.Nifti1Image(label, np.eye(4)), folder / "labelsTr" / name)
        listing.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    labels = {"0": "background", **{str(value): f"class{value}" for value in values}}
    modality = {str(index): "MRI" for index in range(channels)}
    results = {"name": "boxes", "labels": labels, "modality": modality, "training": listing}
    (folder / "dataset.json").write_text(json.dumps(results))
    return folder
