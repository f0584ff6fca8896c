"""Augmented batches of tiles: a pure function of (tiles, seed, step), both classes equally often."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hasten.augment.affine import Zoom
from hasten.augment.chain import Batch, Chain, Fixed
from hasten.augment.colour import ColorJitter
from hasten.augment.grid import Flip, Rotate90
from hasten.augment.make_program import CaseSource, make_program
from hasten.augment.program import Program
from hasten.augment.store import store_of_batch
from hasten.pathology.config import ColourConfig
from hasten.pathology.tiles import TileSet

_KEY = "image"
_MIDDLE = 127.5


def normalised(image: Tensor) -> Tensor:
    """0 ... 255, of any shape, as float32 in -1 ... 1."""
    return (image.to(torch.float32) - _MIDDLE) / _MIDDLE


def tile_chain(config: ColourConfig) -> Chain:
    """Flips, quarter turns and zoom in one interpolation, then colours, on tiles of 0 ... 255; -1 ... 1 at its end."""
    low, high = config.zoom_range
    keys = (_KEY,)
    return Chain(
        crop=None,
        ops=(
            *(Flip(keys=keys, prob=config.flip_prob, spatial_axis=(axis,)) for axis in (0, 1)),
            Rotate90(keys=keys, prob=config.rotate90_prob),
            Zoom(keys=keys, prob=config.zoom_prob, min_zoom=(low,), max_zoom=(high,), mode=("bilinear",)),
            ColorJitter(
                keys=keys, brightness=config.brightness, contrast=config.contrast, saturation=config.saturation,
                hue=config.hue, value_range=255.0,
            ),
            Fixed(name="normalise", apply=_normalise, keys=keys),
        ),
        keys=keys,
    )  # fmt: skip


def _normalise(batch: Batch) -> Batch:
    return {**batch, _KEY: normalised(batch[_KEY])}


def balanced(label: Tensor) -> tuple[int, ...]:
    """Positions of all tiles, those of the rarer class repeated until both classes are as many.

    label: (N,) of 0 and 1.
    """
    groups = [torch.nonzero(label == value)[:, 0] for value in (0, 1)]
    most = max(len(group) for group in groups)
    return tuple(int(group[number % len(group)]) for group in groups for number in range(most))


def make_batches(
    tiles: TileSet, config: ColourConfig, *, batch_size: int, seed: int, device: torch.device, resident: bool
) -> Program:
    """Batches of image (B, 3, H, W) float32 and label (B,) uint8. resident: whether all tiles are kept on the device.

    Otherwise a thread gathers those of the next batches on the host.
    """
    store = replace(store_of_batch({_KEY: tiles.image}, tiles.image.device), per_case={"label": tiles.label})
    return make_program(
        tile_chain(config), CaseSource(store=store.to(device) if resident else store), batch_size=batch_size, seed=seed,
        train_cases=balanced(tiles.label), device=device, compile=config.compile,
    )  # fmt: skip
