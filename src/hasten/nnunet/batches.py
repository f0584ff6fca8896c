"""nnU-Net's preprocessed cases, read once, and batches of them in its format at the positions that it draws."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Chain
from hasten.augment.crop import CropOp, draw_point, voxel_of
from hasten.augment.presets import nnunet_chain
from hasten.augment.program import Program
from hasten.cache.arena import PointSets, Store
from hasten.config.schema import Triple
from hasten.config.size import size_text
from hasten.devices import free_bytes, holds_cases
from hasten.feed.feed import Feed
from hasten.nets.losses.deep_supervision import nearest
from hasten.nets.losses.regions import region_masks
from hasten.observe.cores import available_memory
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform

_SHARE = 0.5
"""Share of the free memory of a GPU or the host that the cases may take."""
Locations = Mapping[Any, np.ndarray]
"""Voxels (n, 4) that nnU-Net stores for each class or region: channel, D, H, W."""


def read_cases(
    dataset: Any, *, spatial_dims: int = 3, annotated: tuple[int, ...] | None = None, budget: int | None = None
) -> Store:
    """All cases of nnU-Net's dataset, an object with `identifiers` and `load_case`, under the keys image and label.

    spatial_dims: 2 for slices along D. annotated: nnU-Net's name for all voxels that have a label, where some are to be
    ignored; they are the last of the point sets. Labels are stored with 1 added, so that 0 is nnU-Net's label -1, which
    lies outside of the body, as it does outside of the case. budget: bytes of host memory, by default half of what is
    available. Raises ValueError for cases that can't be read or are unlike the first, and MemoryError where they take
    more.
    """
    shapes, channels, locations, label_type = _forms(dataset)
    voxels = [math.prod(shape) for shape in shapes]
    total = sum(voxels)
    num_bytes = total * (4 * channels + label_type.itemsize)
    budget = int(_SHARE * available_memory()) if budget is None else budget
    if num_bytes > budget:
        raise MemoryError(f"the cases take {size_text(num_bytes)}, and memory has room for {size_text(budget)}")
    image, label = torch.empty(total * channels), torch.empty(total, dtype=label_type)
    start = 0
    for name, size in zip(dataset.identifiers, voxels, strict=True):
        data, seg, *_ = dataset.load_case(name)
        target = image[start * channels : (start + size) * channels]
        target.copy_(torch.from_numpy(np.asarray(data[:], np.float32).reshape(-1)))
        label[start : start + size].copy_(torch.from_numpy(np.asarray(seg[:], np.int16).reshape(-1) + 1))
        start += size
    sizes = torch.tensor(voxels)
    return Store(
        values={"image": image, "label": label},
        channels={"image": channels, "label": 1},
        shape=torch.tensor(shapes),
        offset=sizes.cumsum(0) - sizes,
        spatial_dims=spatial_dims,
        ids=tuple(dataset.identifiers),
        sets=_point_sets(locations, shapes, annotated),
    )


def placed(store: Store, device: torch.device) -> Store:
    """The cases, moved to the GPU if they take less than half of its free memory."""
    if not holds_cases(device):
        return store
    size = sum(value.nbytes for value in store.values.values())
    return store.to(device) if size < _SHARE * free_bytes(device) else store


def _forms(dataset: Any) -> tuple[list[Triple], int, list[Locations], torch.dtype]:
    """Shape of each case, the number of channels, the locations of each case, and the labels' type."""
    shapes, locations, narrow, channels = [], [], True, 0
    for name in dataset.identifiers:
        try:
            data, seg, _, properties = dataset.load_case(name)
        except (OSError, RuntimeError, KeyError) as error:
            raise ValueError(
                f"{name}: its preprocessed files can't be read ({error}); run nnUNetv2_preprocess for this "
                "configuration again"
            ) from error
        channels = channels or data.shape[0]
        if data.shape[0] != channels or tuple(seg.shape[1:]) != tuple(data.shape[1:]):
            raise ValueError(
                f"{name}: image {tuple(data.shape)}, label map {tuple(seg.shape)}; both must cover the same voxels, "
                f"and {channels} channels are needed, as in {dataset.identifiers[0]}; run nnUNetv2_preprocess again"
            )
        shapes.append((data.shape[1], data.shape[2], data.shape[3]))
        locations.append(properties["class_locations"])
        narrow = narrow and seg.dtype.itemsize == 1  # nnU-Net stores labels up to 127 in one byte
    if not shapes:
        raise ValueError("this fold has no cases; correct splits_final.json beside the plans")
    return shapes, channels, locations, torch.uint8 if narrow else torch.int16


def _point_sets(
    locations: Sequence[Locations], shapes: Sequence[Triple], annotated: tuple[int, ...] | None
) -> PointSets:
    keys: set[Any] = {key for case in locations for key in case} - {annotated}
    sets: Sequence[Any] = [*sorted(keys, key=str), *([] if annotated is None else [annotated])]
    rows: list[np.ndarray] = [np.empty(0, np.int32)]
    for case, (_, height, width) in zip(locations, shapes, strict=True):
        for key in sets:
            points = np.asarray(case.get(key, ())).reshape(-1, 4)[:, 1:].astype(np.int64)
            rows.append((points @ [height * width, width, 1]).astype(np.int32))
    counts = torch.tensor([len(row) for row in rows[1:]], dtype=torch.int64).view(len(shapes), len(sets))
    first = (counts.view(-1).cumsum(0) - counts.view(-1)).view_as(counts)
    return PointSets(torch.from_numpy(np.concatenate(rows)), first, counts)


_PLACE, _CHOICE = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class NnunetCrop:
    """`nnUNetDataLoader.get_bbox`: the last `forced` patches of each batch are about foreground, the others anywhere.

    A patch about foreground may hang over the upper border of the case by so much that its voxel is the centre, as
    nnU-Net does; what lies outside is 0.
    """

    size: Triple
    initial_size: Triple
    """What nnU-Net cuts before it rotates; the patch is the centre of it."""
    batch_size: int
    forced: int
    forced_prob: float | None = None
    """Probability that a patch is forced to foreground, instead of `forced` (`probabilistic_oversampling`)."""
    annotated: bool = False
    """Whether the last point set is of all voxels with a label: patches that are not forced lie about one of them."""
    keys: tuple[str, ...] = ("image", "label")
    num_samples: int = 1
    pad: bool = True

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        assert sets is not None
        size, initial = constant(self.size, key.device), constant(self.initial_size, key.device)
        need = torch.maximum(initial - size, initial - shape)
        low = -((need + 1) // 2)
        high = shape + (need + 1) // 2 - initial
        anywhere = low + below(random_words(key, _PLACE, 3), high - low + 1)
        forced = self._is_forced(key)
        point, drawn = draw_point(sets, case, key, self._weights(sets, case, forced))
        about = torch.maximum(voxel_of(point, shape) - initial // 2, low)
        use = (forced | self.annotated) & drawn
        return torch.where(use[:, None], about, anywhere) + initial // 2 - size // 2

    def _is_forced(self, key: Tensor) -> Tensor:
        if self.forced_prob is not None:
            return uniform(key, _CHOICE, 1)[:, 0] < self.forced_prob
        return torch.arange(len(key), device=key.device) % self.batch_size >= self.batch_size - self.forced

    def _weights(self, sets: PointSets, case: Tensor, forced: Tensor) -> Tensor:
        """(B, K) of each set. Annotated voxels stand for a class only where a case has no other."""
        counts = sets.num[case]
        weight = torch.ones(counts.shape, device=counts.device)
        if self.annotated:
            others = (counts[:, :-1] > 0).any(1)
            weight[:, :-1] = forced[:, None].to(weight.dtype)
            weight[:, -1] = (~(forced & others)).to(weight.dtype)
        return weight


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
    if augmentation is None:
        return Chain(crop=crop, ops=(), keys=("image", "label"), label_keys=("label",))
    return nnunet_chain(
        crop.size,
        num_channels=store.channels["image"],
        crop=crop,
        rotate_deg=augmentation.rotate_deg,
        spatial_dims=store.spatial_dims,
        mirror_axes=augmentation.mirror_axes,
        in_plane=augmentation.in_plane,
        label_mode="majority",
    )


def batches_of(
    program: Program,
    *,
    first: int,
    scales: Sequence[Sequence[float]] | None,
    regions: Sequence[Sequence[int]] = (),
    masked: Sequence[int] = (),
) -> Generator[dict[str, Any], None, None]:
    """A data loader for nnU-Net's trainer: {"data", "target"} on the device, without end from step `first` on.

    scales: of the targets of deep supervision, finest first; None gives one target and no list. regions: rising labels
    of each mask of the target, that of the label to ignore last; () gives the label map. masked: channels that are 0
    outside of the body.
    """
    for batch in Feed(program, first=first, last=_FOREVER):
        image, label = _as_nnunet(batch["image"], batch["label"], masked)
        target = region_masks(label, regions) if regions else label
        if scales is None:
            yield {"data": image, "target": target}
            continue
        sides = label.shape[2:]
        sizes = [[round(side * share) for side, share in zip(sides, scale, strict=True)] for scale in scales]
        yield {"data": image, "target": [nearest(target, size) for size in sizes]}


def _as_nnunet(image: Tensor, label: Tensor, masked: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Undo the +1 of the stored labels: voxels outside of the body and of the case become background."""
    inside = label > 0
    if masked:
        by_channel = list(image.split(1, dim=1))
        for number in masked:
            by_channel[number] = by_channel[number].masked_fill(~inside, 0.0)
        image = torch.cat(by_channel, dim=1)
    return image, label - inside.to(label.dtype)
