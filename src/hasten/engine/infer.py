"""Label maps of whole volumes: small ones in padded batches, large ones by a sliding window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.config.schema import Triple
from hasten.engine.step import autocast, memory_format, shaped


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """How a network is applied to volumes of any size."""

    patch: Triple
    """Window (D, H, W), a multiple of the network's divisor."""
    divisor: Triple
    whole_up_to: int
    """A volume of at most this many voxels, padded, goes through the network in one piece."""
    overlap: float
    batch_size: int
    precision: str
    channels_last: bool
    spatial_dims: int
    device: torch.device


@torch.inference_mode()
def infer_labels(network: nn.Module, volumes: Sequence[Tensor], how: Inference) -> Iterator[tuple[int, Tensor]]:
    """Yield (position in `volumes`, (D, H, W) uint8 class index on the device), each as soon as it is known.

    volumes: (C, D, H, W) tensors of any float dtype, on any device. Nothing the size of a volume outlives its own turn.
    """
    small: list[int] = []
    large: list[int] = []
    for position, volume in enumerate(volumes):
        padded = _padded(_shape(volume), how)
        (small if padded[0] * padded[1] * padded[2] <= how.whole_up_to else large).append(position)
    # Only volumes that are padded to one size share a batch: a case's labels must not depend on what it came with.
    groups: dict[Triple, list[int]] = {}
    for position in small:
        groups.setdefault(_padded(_shape(volumes[position]), how), []).append(position)
    for size, group in groups.items():
        for first in range(0, len(group), how.batch_size):
            batch = group[first : first + how.batch_size]
            yield from zip(batch, _whole(network, [volumes[at] for at in batch], size, how), strict=True)
    for position in large:
        yield position, sliding_window(network, volumes[position], how).argmax(0).to(torch.uint8)


def _shape(volume: Tensor) -> Triple:
    return volume.shape[1], volume.shape[2], volume.shape[3]


def _padded(shape: Triple, how: Inference) -> Triple:
    """At least a training patch, so that an instance norm sees as much padding as it was trained with."""
    depth, height, width = (
        max(patch, -(-size // unit) * unit) for size, patch, unit in zip(shape, how.patch, how.divisor, strict=True)
    )
    return depth, height, width


def _forward(network: nn.Module, image: Tensor, how: Inference) -> Tensor:
    """(B, C, D, H, W) to (B, K, D, H, W) scores."""
    image = shaped(image, how.spatial_dims, memory_format(how.spatial_dims, how.channels_last))
    with autocast(how.device, how.precision):
        output: Tensor = network(image)
    return output if how.spatial_dims == 3 else output[:, :, None]


def _whole(network: nn.Module, volumes: list[Tensor], size: Triple, how: Inference) -> list[Tensor]:
    batch = torch.zeros(len(volumes), volumes[0].shape[0], *size, device=how.device)
    places = []
    for number, volume in enumerate(volumes):
        corner = [(room - side) // 2 for room, side in zip(size, _shape(volume), strict=True)]
        d, h, w = (slice(start, start + side) for start, side in zip(corner, _shape(volume), strict=True))
        batch[number, :, d, h, w] = volume.to(how.device, torch.float32)
        places.append((d, h, w))
    labels = _forward(network, batch, how).argmax(1).to(torch.uint8)
    return [labels[number, d, h, w] for number, (d, h, w) in enumerate(places)]


def sliding_window(network: nn.Module, volume: Tensor, how: Inference) -> Tensor:
    """(K, D, H, W) float32 scores on the device: Gaussian-weighted mean of overlapping windows. volume: (C, D, H, W).

    Windows, overlap and weights as MONAI's `sliding_window_inference(mode="gaussian", padding_mode="constant")`.
    """
    shape = _shape(volume)
    size = tuple(max(side, window) for side, window in zip(shape, how.patch, strict=True))
    before = [(room - side) // 2 for room, side in zip(size, shape, strict=True)]
    pad = [amount for axis in (2, 1, 0) for amount in (before[axis], size[axis] - shape[axis] - before[axis])]
    image = functional.pad(volume.to(how.device, torch.float32), pad)
    places = list(product(*(_starts(side, window, how.overlap) for side, window in zip(size, how.patch, strict=True))))
    weight = _gaussian(how.patch, how.device)
    total, norm = None, torch.zeros(size, device=how.device)
    for first in range(0, len(places), how.batch_size):
        slots = [
            tuple(slice(start, start + window) for start, window in zip(place, how.patch, strict=True))
            for place in places[first : first + how.batch_size]
        ]
        scores = _forward(network, torch.stack([image[(slice(None), *slot)] for slot in slots]), how)
        if total is None:
            total = torch.zeros(scores.shape[1], *size, device=how.device)
        for slot, score in zip(slots, scores, strict=True):
            total[(slice(None), *slot)] += score.float() * weight
            norm[slot] += weight
    assert total is not None
    inside = tuple(slice(start, start + side) for start, side in zip(before, shape, strict=True))
    return (total / norm)[(slice(None), *inside)]


def _starts(side: int, window: int, overlap: float) -> list[int]:
    """First voxel of each window along an axis; the last one ends with the volume."""
    interval = max(1, int(window * (1 - overlap)))
    count = -(-(side - window) // interval) + 1 if side > window else 1
    return [min(number * interval, side - window) for number in range(count)]


def _gaussian(window: Triple, device: torch.device) -> Tensor:
    """Separable Gaussian, sigma an eighth of each side, floored at a thousandth, as in MONAI."""
    weight = torch.ones((), device=device)
    for axis, side in enumerate(window):
        offset = torch.arange(side, device=device, dtype=torch.float32) - (side - 1) / 2
        profile = torch.exp(-0.5 * (offset / (0.125 * side)) ** 2)
        weight = weight * profile.view([-1 if place == axis else 1 for place in range(3)])
    return weight.clamp(min=1e-3)
