from __future__ import annotations

import json
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `benchmarks` is a folder of the repository, not an installed package


def write_set(folder: Path, *, count: int, shape: tuple[int, int, int], ct: bool) -> Path:
    """A Decathlon folder of `count` volumes (x, y, z) with two bright boxes as classes 1 and 2."""
    rng = np.random.default_rng(0)
    listing = []
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for index in range(count):
        label = np.zeros(shape, np.uint8)
        x, y, z = (side // 4 + int(rng.integers(0, 3)) for side in shape)
        label[x : x + 8, y : y + 8, z : z + 8] = 1
        label[x + 9 : x + 15, y : y + 8, z : z + 8] = 2
        image = rng.normal(0, 10, shape) + 60 * label
        if ct:
            image[0] = -1000
        name = f"case_{index:03d}.nii.gz"
        nib.save(nib.Nifti1Image(image.astype(np.int16), np.eye(4)), folder / "imagesTr" / name)
        nib.save(nib.Nifti1Image(label, np.eye(4)), folder / "labelsTr" / name)
        listing.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    labels = {"0": "background", "1": "left", "2": "right"}
    (folder / "dataset.json").write_text(json.dumps({"name": "boxes", "labels": labels, "training": listing}))
    return folder


@pytest.fixture(scope="session")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("mr") / "set", count=4, shape=(30, 34, 28), ct=False)


@pytest.fixture(scope="session")
def ct_boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("ct") / "set", count=4, shape=(40, 36, 32), ct=True)
