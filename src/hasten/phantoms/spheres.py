"""The 128^3 volumes of bright balls that MONAI's own test of fast training makes, voxel for voxel.

`tests/integration/test_integration_fast_train.py` of MONAI draws its 41 cases one after another from one generator
with `monai.data.create_test_image_3d(128, 128, 128, num_seg_classes=1)`; so does this, without MONAI.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hasten.phantoms.write import write_volumes

LABELS = {0: "background", 1: "ball"}
_BALLS, _LARGEST, _SMALLEST = 12, 30, 5


def make_spheres(
    *, num_cases: int = 41, shape: tuple[int, int, int] = (128, 128, 128), seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Case after case: image (D, H, W) float32 in 0..1, label (D, H, W) uint8 with 1 in a ball.

    Raises ValueError for a side of 60 voxels or fewer, in which the largest ball has no room.
    """
    if min(shape) <= 2 * _LARGEST or num_cases < 1:
        raise ValueError(f"spheres: {num_cases} cases of shape {shape}; needs at least 1, and over 60 voxels a side.")
    drawn = np.random.RandomState(seed)  # the generator that MONAI's test draws from
    return (_case(drawn, shape) for _ in range(num_cases))


def write_spheres(
    out: str | Path, *, num_cases: int = 41, shape: tuple[int, int, int] = (128, 128, 128), seed: int = 0
) -> Path:
    """A Decathlon folder of them, 1 mm; returns `out`. Raises ValueError as `make_spheres` does.

    The names are those of MONAI's test, img0 to img40, and so the last nine by name are its validation cases.
    """
    cases = make_spheres(num_cases=num_cases, shape=shape, seed=seed)
    names = [f"img{index}" for index in range(num_cases)]
    # One thread: each case continues with the generator state of the previous one.
    return write_volumes(
        Path(out),
        names,
        lambda index: next(cases),
        title="Balls as MONAI's test of fast training makes them",
        channels=("image",),
        labels=LABELS,
        spacing=(1.0, 1.0, 1.0),
        num_threads=1,
    )


def _case(drawn: np.random.RandomState, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    sizes = shape[::-1]  # MONAI's axes are (x, y, z)
    image = np.zeros(sizes)
    for _ in range(_BALLS):
        centre = [drawn.randint(_LARGEST, size - _LARGEST) for size in sizes]
        radius = drawn.randint(_SMALLEST, _LARGEST)
        x, y, z = np.ogrid[tuple(slice(-at, size - at) for at, size in zip(centre, sizes, strict=True))]
        image[x * x + y * y + z * z <= radius * radius] = drawn.random_sample() * 0.5 + 0.5
    drawn.uniform(0, 0, size=sizes)  # noise of no strength, which the next case's draws come after
    label = np.ceil(image).astype(np.uint8)
    low, high = image.min(), image.max()
    return ((image - low) / (high - low)).astype(np.float32).T, label.T
