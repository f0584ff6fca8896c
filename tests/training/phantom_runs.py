"""Runs on a few boxes in noise, trained in seconds, and what their tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from PIL import Image

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.config.load import load_run
from hasten.training.run import train

VALUES = (0, 3, 7)
SPACING = (1.0, 1.2, 1.5)  # x, y, z

SMALL = [
    "train.device=cpu",
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "train.ema=0",
    "train.learning_rate=0.02",
    "train.validate_every=100",
    "sample.batch_size=2",
    "sample.affine_prob=0",
    "sample.noise_prob=0",
    "prepare.num_threads=1",
    "network.channels=[4, 8]",
    "network.num_res_units=1",
]


def anatomy(seed: int, shape: tuple[int, ...] = (20, 18, 12)) -> tuple[np.ndarray, np.ndarray]:
    """Image and label, x fastest in meaning: two bright boxes in dim noise, the classes told by brightness."""
    rng = np.random.default_rng(seed)
    label = np.zeros(shape, np.uint8)
    corner = rng.integers(2, 4, len(shape))
    label[tuple(slice(c, c + 6) for c in corner)] = 3
    label[tuple(slice(n - c - 5, n - c) for n, c in zip(shape, corner, strict=True))] = 7
    image = rng.normal(20, 5, shape) + 20.0 * label
    return image.astype(np.float32), label


def save(path: Path, array: np.ndarray, affine: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(array, affine)
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, path)
    return path


def source(folder: Path, num_channels: int = 1) -> Path:
    """An nnU-Net folder of four cases whose labels are 0, 3 and 7."""
    affine = np.diag([*SPACING, 1.0])
    for number in range(4):
        image, label = anatomy(number)
        for channel in range(num_channels):
            save(folder / f"imagesTr/case{number}_{channel:04d}.nii.gz", image * (1 + channel), affine)
        save(folder / f"labelsTr/case{number}.nii.gz", label, affine)
    names = ", ".join(f'"{channel}": "T{channel}"' for channel in range(num_channels))
    (folder / "dataset.json").write_text(
        f'{{"channel_names": {{{names}}}, "labels": {{"background": 0, "a": 3, "b": 7}}, "file_ending": ".nii.gz"}}'
    )
    return folder


def trained(folder: Path, data: Path, *more: str) -> Path:
    overrides = [f"data.source={data}", f"cache.dir={folder / 'cache'}", *SMALL, *more]
    train(load_run(None, overrides), folder / "run")
    return folder / "run"


IN_3D = ("sample.patch=[12, 16, 16]", "network.strides=[[2, 2, 2]]")


def picture(folder: Path, number: int) -> tuple[Path, np.ndarray]:
    image, label = anatomy(number, (24, 20))
    Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"p{number}.png")
    Image.fromarray(label).save(folder / "labels" / f"p{number}.png")
    return folder / "images" / f"p{number}.png", label


def pictures(folder: Path) -> Path:
    """A folder of four pictures whose labels are 0, 3 and 7."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    for number in range(4):
        picture(folder, number)
    (folder / "labels.json").write_text('{"0": "background", "3": "a", "7": "b"}')
    return folder


def variant(run: Path, out: Path, **prepare: Any) -> Path:
    """The same network with its input prepared in another way."""
    content = read_checkpoint(run / "checkpoints/best.pt")
    content["config"]["prepare"].update(prepare)
    write_checkpoint(out / "checkpoints/best.pt", content)
    return out


def array_of(path: Path) -> np.ndarray:
    return np.asanyarray(nib.load(path).dataobj)


def oblique(angle: float) -> np.ndarray:
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    turn[:3, 3] = (11.0, -7.5, 3.25)
    return turn @ np.diag([*SPACING, 1.0])


AFFINES = {
    "RAS": np.diag([*SPACING, 1.0]),
    "LPS": np.diag([-SPACING[0], -SPACING[1], SPACING[2], 1.0]),
    "permuted": np.diag([*SPACING, 1.0])[[2, 0, 1, 3]],
    "oblique": oblique(0.3),
}
