"""Items of any keys in one flat tensor a key: what a chain's crops and maps read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.crop import CentredCropOp, CropOp
from hasten.augment.points import PointSets
from hasten.cache.arena import Arena
from hasten.config.schema import Triple

_KEPT = (torch.float16, torch.float32, torch.int16, torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """N cases, each with the same voxels in every key."""

    values: Mapping[str, Tensor]
    """Of each key, (V * C,): case after case, each (C, D, H, W), as it was stored."""
    channels: Mapping[str, int]
    shape: Tensor
    """(N, 3) int64, D = 1 in 2-D."""
    offset: Tensor
    """(N,) int64: voxels before each case."""
    spatial_dims: int
    ids: tuple[str, ...]
    sets: PointSets | None = None

    @property
    def device(self) -> torch.device:
        return self.shape.device

    def to(self, device: torch.device | str) -> Store:
        where = torch.device(device)
        return replace(
            self,
            values={name: value.to(where) for name, value in self.values.items()},
            shape=self.shape.to(where), offset=self.offset.to(where),
            sets=self.sets.to(where) if self.sets else None,
        )  # fmt: skip


def store_of_items(items: Iterable[tuple[str, Mapping[str, Any]]], keys: Sequence[str]) -> Store:
    """items: (name, item); the entries `keys` of each are (C, D, H, W) or (C, H, W) arrays or tensors.

    float16, float32, int16 and uint8 are kept as they are, truth values become uint8, all else
    float32. Raises ValueError naming the item.
    """
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    found: dict[str, list[Tensor]] = {key: [] for key in keys}
    for name, item in items:
        volumes = {key: _volume(name, item, key) for key in keys}
        first = next(iter(volumes.values()))
        for key, volume in volumes.items():
            if volume.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f'{name}: "{key}" has shape {tuple(volume.shape)} and "{keys[0]}" {tuple(first.shape)}; '
                    "the entries of an item must cover the same voxels"
                )
            if names and (volume.ndim, volume.shape[0]) != (len(shapes[0]) + 1, found[key][0].shape[0]):
                raise ValueError(
                    f'{name}: "{key}" has shape {tuple(volume.shape)}, that of {names[0]} '
                    f"{tuple(found[key][0].shape)}; "
                    "channels and number of axes must be the same in all items"
                )
            found[key].append(volume)
        names.append(name)
        shapes.append(tuple(first.shape[1:]))
    if not names:
        raise ValueError("there are no items to make batches from; give the program a data set that is not empty")
    full = torch.tensor([(1, *shape)[-3:] for shape in shapes], dtype=torch.int64)
    sizes = full.prod(1)
    return Store(
        values={key: _joined(volumes) for key, volumes in found.items()},
        channels={key: volumes[0].shape[0] for key, volumes in found.items()},
        shape=full, offset=sizes.cumsum(0) - sizes, spatial_dims=len(shapes[0]), ids=tuple(names),
    )  # fmt: skip


def store_of_arena(arena: Arena, spatial_dims: int) -> Store:
    """The prepared cases of an arena as the keys `image` and `label`; nothing is copied."""
    tables = arena.tables
    return Store(
        values={"image": tables.image, "label": tables.label}, channels={"image": arena.num_channels, "label": 1},
        shape=tables.shape, offset=tables.offset, spatial_dims=spatial_dims, ids=arena.ids,
    )  # fmt: skip


def with_sets(store: Store, crop: CropOp) -> Store:
    """The store with the voxels that `crop` is centred on. It lies on the host. Raises ValueError for an absent key."""
    if not isinstance(crop, CentredCropOp):
        return store
    image_key = getattr(crop, "image_key", None)
    for field, key in (("label_key or w_key", crop.centred_on), ("image_key", image_key)):
        if key is not None and key not in store.values:
            raise ValueError(
                f'{type(crop).__name__}: {field}="{key}" is not among the cached keys {sorted(store.values)}; '
                "name one of them"
            )
    rows = []
    for number in range(len(store.ids)):
        values = case_of(store, crop.centred_on, number).numpy()
        image = None if image_key is None else case_of(store, image_key, number).numpy()
        rows.append(crop.sets(values, image, number))
    counts = torch.tensor([[each.size for each in row] for row in rows], dtype=torch.int64)
    flat = [each for row in rows for each in row]
    starts = counts.reshape(-1).cumsum(0) - counts.reshape(-1)
    sets = PointSets(torch.from_numpy(np.concatenate(flat)), starts.view_as(counts), counts)
    return replace(store, sets=sets)


def case_of(store: Store, key: str, number: int) -> Tensor:
    """(C, D, H, W) view of one case on the host."""
    depth, height, width = (int(side) for side in store.shape[number])
    channels, size = store.channels[key], depth * height * width
    start = int(store.offset[number]) * channels
    return store.values[key][start : start + size * channels].view(channels, depth, height, width)


def check_fits(store: Store, crop: CropOp) -> None:
    """Raises ValueError where no case, or one of them, is smaller than the patch and padding is not allowed."""
    if crop.pad:
        return
    size = torch.tensor(crop.size)
    small = (store.shape.cpu() < size).any(1)
    if bool(small.any()):
        which = int(small.nonzero()[0, 0])
        told = tuple(store.shape[which].tolist())[3 - store.spatial_dims :]
        wanted = crop.size[3 - store.spatial_dims :]
        many = "every case is" if bool(small.all()) else f"{int(small.sum())} of {len(store.ids)} cases are"
        raise ValueError(
            f"{type(crop).__name__}: the patch {wanted} does not fit: {many} smaller, such as {store.ids[which]} with "
            f"{told} voxels; take a smaller patch, or pad (allow_smaller=True, or SpatialPadd before it)"
        )


def common_size(store: Store) -> Triple:
    """(D, H, W) of every case. Raises ValueError naming two cases that differ."""
    shapes = store.shape.cpu()
    other = (shapes != shapes[0]).any(1)
    if bool(other.any()):
        which = int(other.nonzero()[0, 0])
        raise ValueError(
            f"{store.ids[0]} has {tuple(shapes[0].tolist())} voxels and {store.ids[which]} "
            f"{tuple(shapes[which].tolist())}; "
            "without a crop in the chain all items must have one shape: add a crop or a resize"
        )
    depth, height, width = shapes[0].tolist()
    return depth, height, width


def _volume(name: str, item: Mapping[str, Any], key: str) -> Tensor:
    if key not in item:
        raise ValueError(
            f'{name}: has no "{key}", only {sorted(map(str, item))}; name the keys that the chain works on'
        )
    value = torch.as_tensor(item[key]).as_subclass(Tensor).detach().cpu()
    if value.ndim not in (3, 4):
        raise ValueError(
            f'{name}: "{key}" has shape {tuple(value.shape)}; channels first and 2 or 3 axes of space are needed '
            "(MONAI: EnsureChannelFirstd)"
        )
    if value.dtype == torch.bool:
        return value.to(torch.uint8)
    return value if value.dtype in _KEPT else value.to(torch.float32)


def _joined(volumes: list[Tensor]) -> Tensor:
    dtypes = {volume.dtype for volume in volumes}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return torch.cat([volume.reshape(-1).to(dtype) for volume in volumes])
