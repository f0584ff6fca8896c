"""Items on the disk and a chain of MONAI's transforms, with a count of how often its deterministic part ran."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, RandFlipd, ScaleIntensityd, Transform

from hasten.cases.nifti import write_nifti

AFFINE = np.diag([1.0, 2.0, 3.0, 1.0])


class Counted(Transform):
    """Deterministic; counts its calls in all threads."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.calls.append(str(item["id"]))
        return dict(item)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, _: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def __deepcopy__(self, _: dict[int, Any]) -> Counted:
        return self


def write_items(folder: Path, count: int, *, side: int = 6) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        rng = np.random.default_rng(number)
        image = write_nifti(folder / f"i{number}.nii", rng.normal(size=(side, side, side)).astype(np.float32), AFFINE)
        label = write_nifti(folder / f"l{number}.nii", rng.integers(0, 2, (side,) * 3).astype(np.uint8), AFFINE)
        rows.append({"id": number, "image": str(image), "label": str(label)})
    return rows


def chain(*more: Any, flip: float = 0.0, low: float = 0.0) -> Compose:
    keys = ["image", "label"]
    return Compose(
        [
            LoadImaged(keys),
            EnsureChannelFirstd(keys),
            ScaleIntensityd("image", minv=low, maxv=1.0),
            *more,
            RandFlipd(keys, prob=flip, spatial_axis=0),
        ]
    )


def assert_items_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key]))
            if hasattr(value, "affine"):
                assert torch.equal(value.affine, other[key].affine)
        else:
            assert value == other[key]
