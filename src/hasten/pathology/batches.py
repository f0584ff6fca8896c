"""Augmented batches of tiles: a pure function of (tiles, seed, step), both classes as often as each other."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hasten.augment.affine import Zoom
from hasten.augment.chain import Batch, Chain, Fixed
from hasten.augment.colour import ColorJitter
from hasten.augment.grid import Flip, Rotate90
from hasten.augment.program import ChainProgram, make_chain_program
from hasten.augment.source import batch_store
from hasten.augment.store import Store
from hasten.feed.ring import Ring
from hasten.pathology.config import ColourConfig
from hasten.pathology.tiles import TileSet
from hasten.sample.order import cases_of

_KEY = "image"
_MIDDLE = 127.5


def normalised(image: Tensor) -> Tensor:
    """0 ... 255 as float32 in -1 ... 1."""
    return image.to(torch.float32).sub_(_MIDDLE).div_(_MIDDLE) if image.dtype == torch.uint8 else _scaled(image)


def _scaled(image: Tensor) -> Tensor:
    return (image - _MIDDLE) / _MIDDLE


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
    return {**batch, _KEY: _scaled(batch[_KEY])}


def balanced(label: Tensor) -> tuple[int, ...]:
    """Positions of all tiles, those of the rarer class repeated until both classes are as many."""
    groups = [torch.nonzero(label == value)[:, 0] for value in (0, 1)]
    most = max(len(group) for group in groups)
    return tuple(int(group[number % len(group)]) for group in groups for number in range(most))


@dataclass(frozen=True, kw_only=True, slots=True)
class TileBatches:
    """`batches(first, last)` gives (image (B, 3, H, W) float32, label (B,) uint8) of these steps on the device.

    Tiles that lie on the device are read there; else a thread gathers those of the next batches on the host.
    """

    program: ChainProgram
    tiles: Tensor
    """(N, 3, H, W) uint8."""
    label: Tensor
    """(N,) uint8, on the device."""
    resident: bool
    """Whether the tiles lie on the device."""

    def batches(self, first: int, last: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        program, size = self.program, self.program.batch_size
        if self.resident:
            for draws in program.draws(first, last):
                yield program.rendered(draws)[_KEY], self.label[draws.case]
            return
        own = torch.arange(size, device=program.device)
        with closing(iter(Ring(self._gathered(first, last), program.device))) as ahead:
            for (tiles,), draws in zip(ahead, program.draws(first, last), strict=True):
                here = replace(program, store=batch_store({_KEY: tiles}, program.device))
                yield here.rendered(draws._replace(case=own))[_KEY], self.label[draws.case]

    def _gathered(self, first: int, last: int) -> Generator[tuple[Tensor, ...], None, None]:
        """Tiles of each batch on the host: the same as the program draws on the device."""
        seed, positions, size = self.program.seed.cpu(), self.program.train_cases.cpu(), self.program.batch_size
        for step in range(first, last):
            sample = torch.arange(step * size, (step + 1) * size)
            yield (self.tiles[positions[cases_of(seed, sample, len(positions))]],)


def make_batches(
    tiles: TileSet, config: ColourConfig, *, batch_size: int, seed: int, device: torch.device, resident: bool
) -> TileBatches:
    """The batches of a training. resident: whether all tiles are kept on the device, and not only those of a batch."""
    image = tiles.image.to(device) if resident else tiles.image
    shown = image if resident else image[:1].to(device)  # which tells the form of a batch
    program = make_chain_program(
        tile_chain(config), _store(shown), batch_size=batch_size, seed=seed, train_cases=balanced(tiles.label),
        device=device, compile=config.compile,
    )  # fmt: skip
    return TileBatches(program=program, tiles=image, label=tiles.label.to(device), resident=resident)


def _store(image: Tensor) -> Store:
    """Tiles as cases of one size; nothing is copied."""
    number, channels, height, width = image.shape
    return Store(
        values={_KEY: image.reshape(-1)}, channels={_KEY: channels},
        shape=torch.tensor([[1, height, width]], device=image.device).expand(number, 3).contiguous(),
        offset=torch.arange(number, device=image.device) * (height * width), spatial_dims=2,
        ids=tuple(f"tile {index}" for index in range(number)),
    )  # fmt: skip
