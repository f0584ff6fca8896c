"""nnU-Net's preprocessed cases as a program that makes its batches, without loader processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain
from hasten.augment.crop import ForegroundCrop
from hasten.augment.grid import Mirror
from hasten.augment.make_program import Cases, make_program
from hasten.augment.presets import nnunet_chain
from hasten.augment.program import Program
from hasten.augment.store import store_of_items
from hasten.cache.arena import PointSets, Store
from hasten.config.schema import Triple
from hasten.feed.feed import Feed
from hasten.nets.losses.deep_supervision import nearest
from hasten.nets.losses.regions import region_masks

_FOREVER = 2**40
_SHARE = 0.5
"""Of the free memory of a GPU, for the cases."""


def read_cases(dataset: Any) -> Store:
    """All cases of nnU-Net's dataset, an object with `identifiers` and `load_case`, in host memory.

    Keys image and label; -1, nnU-Net's label outside of the body, becomes the background, as its augmentation makes it.
    Crops may be centred on the voxels that nnU-Net remembers of each class or region.
    """
    names, points = list(dataset.identifiers), list[Mapping[Any, np.ndarray]]()

    def items() -> Iterator[tuple[str, dict[str, Any]]]:
        for name in names:
            data, seg, _, properties = dataset.load_case(name)
            label = np.maximum(np.asarray(seg[:]), 0)
            points.append(properties["class_locations"])
            kept = label.astype(np.uint8 if label.max() < 256 else np.int16)
            yield name, {"image": np.asarray(data[:], np.float32), "label": kept}

    store = store_of_items(items(), ("image", "label"))
    return replace(store, sets=_point_sets(points, store.shape))


def _point_sets(cases: Sequence[Mapping[Any, np.ndarray]], shapes: Tensor) -> PointSets:
    classes = sorted({key for case in cases for key in case}, key=str)
    rows: list[np.ndarray] = []
    for case, (_, height, width) in zip(cases, shapes.tolist(), strict=True):
        for key in classes:
            found = np.asarray(case.get(key, ())).reshape(-1, 4)[:, 1:].astype(np.int64)
            rows.append((found @ [height * width, width, 1]).astype(np.int32))
    counts = torch.tensor([len(row) for row in rows], dtype=torch.int64).view(len(cases), len(classes))
    first = (counts.view(-1).cumsum(0) - counts.view(-1)).view_as(counts)
    return PointSets(torch.from_numpy(np.concatenate(rows)), first, counts)


def make_batches(
    store: Store,
    patch: Triple,
    *,
    batch_size: int,
    forced: int,
    seed: int,
    device: torch.device,
    augmented: bool,
    rotate_deg: float = 30.0,
    mirror_axes: Sequence[int] = (),
) -> Program:
    """A program of nnU-Net's default augmentation on these cases; without it, of plain patches.

    forced: of `batch_size` patches, how many are about foreground; each is with that probability.
    """
    crop = ForegroundCrop(size=patch, foreground_prob=forced / batch_size)
    channels = store.channels["image"]
    if augmented:
        chain = nnunet_chain(patch, num_channels=channels, crop=crop, rotate_deg=rotate_deg)
        mirrored = (replace(op, spatial_axis=tuple(mirror_axes)) if isinstance(op, Mirror) else op for op in chain.ops)
        chain = replace(chain, ops=tuple(op for op in mirrored if not isinstance(op, Mirror) or op.spatial_axis))
    else:
        chain = Chain(crop=crop, ops=(), keys=("image", "label"), label_keys=("label",))
    return make_program(chain, Cases(store=store), batch_size=batch_size, seed=seed, device=device)


def placed(store: Store, device: torch.device) -> Store:
    """The cases on the GPU where they take less than half of its free memory, else where they are."""
    if device.type != "cuda":
        return store
    size = sum(value.nbytes for value in store.values.values())
    free, _ = torch.cuda.mem_get_info(device)
    return store.to(device) if size < _SHARE * free else store


@dataclass(kw_only=True)
class Batches:
    """What nnU-Net's trainer takes for a data loader: `next` gives {"data", "target"} on the device."""

    program: Program
    first: int
    """The first step that is asked for."""
    scales: Sequence[Sequence[float]] | None
    """Of the targets of deep supervision, finest first; None gives one target and no list."""
    regions: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        self.feed = Feed(self.program, first=self.first, last=_FOREVER)
        self._batches = iter(self.feed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        batch: Batch = next(self._batches)
        label = batch["label"]
        whole = region_masks(label, self.regions) if self.regions else label
        if self.scales is None:
            return {"data": batch["image"], "target": whole}
        sides = label.shape[2:]
        sizes = [[round(side * share) for side, share in zip(sides, scale, strict=True)] for scale in self.scales]
        return {"data": batch["image"], "target": [nearest(whole, size) for size in sizes]}
