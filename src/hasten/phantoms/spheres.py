"""The 128^3 volumes of bright balls that MONAI's own test of fast training makes, voxel for voxel.

`tests/integration/test_integration_fast_train.py` of MONAI draws its 41 cases one after another from one generator
with `monai.data.create_test_image_3d(128, 128, 128, num_seg_classes=1)`; so does this.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hasten.phantoms.write import write_volumes

LABELS = {0: "background", 1: "ball"}


def write_spheres(
    out: str | Path, *, num_cases: int = 41, shape: tuple[int, int, int] = (128, 128, 128), seed: int = 0
) -> Path:
    """A Decathlon folder of them, 1 mm; returns `out`. Raises ValueError for a side of 60 voxels or fewer.

    Images are float32 in 0..1, labels uint8 with 1 in a ball. The names are those of MONAI's test, img0 to img40, and
    so the last nine by name are its validation cases.
    """
    from monai.data import create_test_image_3d

    drawn = np.random.RandomState(seed)  # the generator that MONAI's test draws from

    def make(_: int) -> tuple[np.ndarray, np.ndarray]:
        # MONAI's axes are (x, y, z).
        image, label = create_test_image_3d(*shape[::-1], num_seg_classes=1, random_state=drawn)
        return image.astype(np.float32).T, label.astype(np.uint8).T

    names = [f"img{index}" for index in range(num_cases)]
    # One thread: each case continues with the generator state of the previous one.
    return write_volumes(
        Path(out),
        names,
        make,
        title="Balls as MONAI's test of fast training makes them",
        channels=("image",),
        labels=LABELS,
        spacing=(1.0, 1.0, 1.0),
        num_threads=1,
    )
