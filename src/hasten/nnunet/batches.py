"""Batches in nnU-Net's format from its preprocessed cases, without loader processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain
from hasten.augment.crop import CropOp
from hasten.augment.presets import nnunet_chain
from hasten.augment.program import Program
from hasten.cache.arena import Store
from hasten.feed.feed import Feed
from hasten.nets.losses.deep_supervision import nearest
from hasten.nets.losses.regions import region_masks
from hasten.nnunet.cascade import FirstStage, with_masks
from hasten.observe.cores import usable_cores

_FOREVER = 2**40


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """nnU-Net's default augmentation, as its trainer sets it up for a configuration."""

    rotate_deg: float
    mirror_axes: tuple[int, ...]
    in_plane: bool
    """Slice by slice (`do_dummy_2d_data_aug`)."""


def chain_of(store: Store, crop: CropOp, augmentation: Augmentation | None) -> Chain:
    """What happens to a patch of these cases."""
    label_keys = tuple(key for key in store.values if key != "image")
    if augmentation is None:
        return Chain(crop=crop, ops=(), keys=("image", *label_keys), label_keys=label_keys)
    return nnunet_chain(
        crop.size, num_channels=store.channels["image"], crop=crop, rotate_deg=augmentation.rotate_deg,
        spatial_dims=store.spatial_dims, mirror_axes=augmentation.mirror_axes, in_plane=augmentation.in_plane,
        label_mode="majority", label_keys=label_keys,
    )  # fmt: skip


@dataclass(kw_only=True)
class Batches:
    """A data loader for nnU-Net's trainer: `next` returns {"data", "target"} on the device."""

    program: Program
    first: int
    """The first step that is requested."""
    scales: Sequence[Sequence[float]] | None
    """Scales of the targets of deep supervision, finest first; None gives one target and no list."""
    regions: Sequence[Sequence[int]] = ()
    """Rising labels of each mask of the target, that of the label to ignore last; () gives the label map."""
    masked: Sequence[int] = ()
    """Channels that are 0 outside of the body."""
    first_stage: FirstStage | None = None
    """First stage of a cascade, whose masks become channels behind those of the image."""

    def __post_init__(self) -> None:
        self.feed = Feed(self.program, first=self.first, last=_FOREVER)
        self._batches: Iterator[Batch] = iter(self.feed)
        if self.first_stage is not None:
            self._batches = with_masks(
                self._batches, self.first_stage, first=self.first, threads=max(1, usable_cores() // 2)
            )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        image, label = _as_nnunet(batch["image"], batch["label"], self.masked)
        whole = region_masks(label, self.regions) if self.regions else label
        if self.scales is None:
            return {"data": image, "target": whole}
        sides = label.shape[2:]
        sizes = [[round(side * share) for side, share in zip(sides, scale, strict=True)] for scale in self.scales]
        return {"data": image, "target": [nearest(whole, size) for size in sizes]}


def _as_nnunet(image: Tensor, label: Tensor, masked: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Undo the +1 of the stored labels: voxels outside of the body and of the case become background."""
    inside = label > 0
    if masked:
        by_channel = list(image.split(1, dim=1))
        for number in masked:
            by_channel[number] = by_channel[number].masked_fill(~inside, 0.0)
        image = torch.cat(by_channel, dim=1)
    return image, label - inside.to(label.dtype)
