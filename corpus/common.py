"""What the scripts share: small networks, and synthetic images and volumes written once into a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pair(kind: int, taken: int, given: int, bias: bool, norm: type[nn.Module] | None = None) -> nn.Sequential:
    conv = nn.Conv2d if kind == 2 else nn.Conv3d
    made = norm or (nn.BatchNorm2d if kind == 2 else nn.BatchNorm3d)
    return nn.Sequential(
        conv(taken, given, 3, padding=1, bias=bias), made(given), nn.ReLU(),
        conv(given, given, 3, padding=1, bias=bias), made(given), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """(N, taken, ...) -> (N, given, ...): sides divisible by 2 ** (len(widths) - 1)."""

    def __init__(self, kind=2, taken=1, given=2, widths=(16, 32, 64), bias=False, norm=None):
        super().__init__()
        self.down = nn.ModuleList(pair(kind, taken if i == 0 else widths[i - 1], w, bias, norm)
                                  for i, w in enumerate(widths))  # fmt: skip
        self.up = nn.ModuleList(pair(kind, widths[i] + widths[i + 1], widths[i], bias, norm)
                                for i in range(len(widths) - 1))  # fmt: skip
        self.pool = nn.MaxPool2d(2) if kind == 2 else nn.MaxPool3d(2)
        self.grow = nn.Upsample(scale_factor=2)
        self.head = (nn.Conv2d if kind == 2 else nn.Conv3d)(widths[0], given, 1)

    def forward(self, x):
        kept = []
        for number, stage in enumerate(self.down):
            x = stage(x if number == 0 else self.pool(x))
            kept.append(x)
        for number in reversed(range(len(self.up))):
            x = self.up[number](torch.cat([kept[number], self.grow(x)], 1))
        return self.head(x)


def folder(name: str) -> Path:
    """Empty, and kept for as long as the process lives."""
    path = tempfile.TemporaryDirectory(prefix=f"{name}-")
    _kept.append(path)
    return Path(path.name)


_kept: list = []


def volume(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """float32 noise with a bright box, and the box."""
    image, label = random.normal(size=shape).astype(np.float32), np.zeros(shape, np.uint8)
    box = tuple(slice(side // 4, side // 2) for side in shape)
    image[box] += 2
    label[box] = 1
    return image, label


def write_images(path: Path, count: int, size: tuple[int, int], suffix: str = "png") -> list[Path]:
    """`N.png` of three channels and `N_mask.png` (or of another suffix) of 0 and 255; size: (width, height)."""
    random, made = np.random.default_rng(0), []
    for number in range(count):
        image, label = volume(random, size[::-1])
        picture = np.clip(60 * image + 100, 0, 255).astype(np.uint8)
        Image.fromarray(picture).convert("RGB").save(path / f"{number}.{suffix}")
        Image.fromarray(255 * label).save(path / f"{number}_mask.{suffix}")
        made.append(path / f"{number}.{suffix}")
    return made


def write_volumes(path: Path, count: int, shape: tuple[int, ...], compressed: bool = False) -> list[Path]:
    random, made = np.random.default_rng(0), []
    for number in range(count):
        image, label = volume(random, shape)
        name = path / f"{number}.npz"
        (np.savez_compressed if compressed else np.savez)(name, image=image, label=label)
        made.append(name)
    return made
