"""Stores of items and batches of any keys, and whether a crop fits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.crop import CentredCropOp, CropOp
from hasten.augment.read import as_cases
from hasten.cache.arena import PointSets, Store
from hasten.config.schema import Triple

_DTYPES = (torch.float16, torch.float32, torch.int16, torch.uint8, torch.bool)


def store_of_items(
    items: Iterable[tuple[str, Mapping[str, Any]]], keys: Sequence[str], numbers: Sequence[str] = ()
) -> Store:
    """items: (name, item); the entries `keys` of each are (C, D, H, W) or (C, H, W) arrays or tensors.

    numbers: entries that are numbers or arrays of them, as `number_keys` gives them; they become `per_case`.

    float16, float32, int16, uint8 and bool keep their dtype, all else becomes float32. Raises ValueError naming the
    item.
    """
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    tensors: dict[str, list[Tensor]] = {key: [] for key in keys}
    rows: dict[str, list[Tensor]] = {key: [] for key in numbers}
    for name, item in items:
        for key, values in rows.items():
            values.append(number_of(name, item, key))
        volumes = {key: _volume(name, item, key) for key in keys}
        first = next(iter(volumes.values()))
        for key, volume in volumes.items():
            alike = tensors[key][0] if names else volume
            if volume.shape[1:] != first.shape[1:] or (volume.ndim, len(volume)) != (alike.ndim, len(alike)):
                raise ValueError(
                    f'{name}: "{key}" has shape {tuple(volume.shape)}, "{keys[0]}" {tuple(first.shape)}; the entries '
                    "of an item must cover the same voxels, and have as many channels and axes in all items"
                )
            tensors[key].append(volume)
        names.append(name)
        shapes.append(tuple(first.shape[1:]))
    if not names:
        raise ValueError("there are no items to make batches from; give the program a data set that is not empty")
    full = torch.tensor([(1, *shape)[-3:] for shape in shapes], dtype=torch.int64)
    sizes = full.prod(1)
    joined = {key: _joined(volumes) for key, volumes in tensors.items()}
    channels = {key: volumes[0].shape[0] for key, volumes in tensors.items()}
    per_case = {key: stacked_numbers(key, entries, names) for key, entries in rows.items()}
    place: dict[str, Any] = {"shape": full, "offset": sizes.cumsum(0) - sizes, "spatial_dims": len(shapes[0])}
    return Store(values=joined, channels=channels, **place, ids=tuple(names), per_case=per_case)


def number_keys(item: Mapping[str, Any], images: Iterable[str]) -> tuple[list[str], list[str]]:
    """Entries of an item beside its images: those that are numbers, in an array or not, and those that are none."""
    image_keys = set(images)
    others = [str(key) for key in item if key not in image_keys]
    numbers = [key for key in others if as_number(item[key]) is not None]
    return numbers, [key for key in others if key not in numbers]


def number_of(name: str, item: Mapping[str, Any], key: str) -> Tensor:
    """An entry that is a number (), or an array of them of any shape, on the host.

    Raises ValueError naming the item where it is no number.
    """
    value = as_number(item.get(key))
    if value is None:
        problem = f"is a {type(item[key]).__name__}" if key in item else "is not there"
        raise ValueError(f'{name}: "{key}" {problem}, and a number in other items; make it one in all, or in none')
    return value


def stacked_numbers(key: str, values: Sequence[Tensor], names: Sequence[str]) -> Tensor:
    """(B, ...). Raises ValueError naming two items whose arrays differ in shape."""
    for name, value in zip(names, values, strict=True):
        if value.shape != values[0].shape:
            raise ValueError(
                f'{name}: "{key}" has shape {tuple(value.shape)}, that of {names[0]} {tuple(values[0].shape)}; make it '
                "the same in all items"
            )
    return torch.stack(list(values))


def as_number(value: Any) -> Tensor | None:
    """A number (), or an array of them, on the host; Python's are float64 or int64, as in MONAI. None for the rest."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return None
    try:
        plain = value if isinstance(value, Tensor) else np.asarray(value)
        return torch.as_tensor(plain, device="cpu").as_subclass(Tensor).detach()
    except (TypeError, ValueError, RuntimeError):
        return None


def store_of_batch(batch: Mapping[str, Tensor], device: torch.device | str) -> Store:
    """A batch (B, C, *S) as B cases of one size. Raises ValueError naming the entry that does not fit."""
    first = next(iter(batch.values()))
    for key, value in batch.items():
        if value.ndim not in (4, 5) or value.shape[2:] != first.shape[2:] or len(value) != len(first):
            raise ValueError(
                f'"{key}" has shape {tuple(value.shape)}, "{next(iter(batch))}" {tuple(first.shape)}; a batch is '
                "(B, C, H, W) or (B, C, D, H, W), its entries with the same B and the same voxels; delete others in "
                "the chain (DeleteItemsd)"
            )
    cases = {key: as_cases(storable(value).to(device)) for key, value in batch.items()}
    _, shape, offset, _ = next(iter(cases.values()))
    values, channels = ({key: getattr(each, name) for key, each in cases.items()} for name in ("values", "channels"))
    place: dict[str, Any] = {"shape": shape, "offset": offset, "spatial_dims": first.ndim - 2}
    return Store(values=values, channels=channels, **place, ids=tuple(f"sample {at}" for at in range(len(first))))


def size_of(batch: Mapping[str, Tensor]) -> Triple:
    """(D, H, W) of a batch."""
    depth, height, width = (1, *next(iter(batch.values())).shape[2:])[-3:]
    return depth, height, width


def storable(value: Tensor) -> Tensor:
    """A plain tensor of any shape, in its dtype if stores support it, else in float32."""
    plain = value.as_subclass(Tensor).detach()
    return plain if plain.dtype in _DTYPES else plain.to(torch.float32)


def with_sets(store: Store, crop: CropOp) -> Store:
    """The store with the voxels that `crop` is centred on. Raises ValueError for an absent key."""
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
        values = case_of(store, crop.centred_on, number).cpu().numpy()
        image = None if image_key is None else case_of(store, image_key, number).cpu().numpy()
        rows.append(crop.sets(values, image, number))
    counts = torch.tensor([[each.size for each in row] for row in rows], dtype=torch.int64)
    flat = [each for row in rows for each in row]
    starts = counts.reshape(-1).cumsum(0) - counts.reshape(-1)
    sets = PointSets(torch.from_numpy(np.concatenate(flat)), starts.view_as(counts), counts)
    return replace(store, sets=sets.to(store.device))


def case_of(store: Store, key: str, number: int) -> Tensor:
    """(C, D, H, W) view of one case."""
    depth, height, width = (int(side) for side in store.shape[number])
    channels, size = store.channels[key], depth * height * width
    start = int(store.offset[number]) * channels
    return store.values[key][start : start + size * channels].view(channels, depth, height, width)


def check_fits(store: Store, crop: CropOp) -> None:
    """Raises ValueError where no case, or one of them, is smaller than the patch and padding is not allowed."""
    if crop.pad:
        return
    small = (store.shape.cpu() < torch.tensor(crop.size)).any(1)
    if bool(small.any()):
        which = int(small.nonzero()[0, 0])
        shape = tuple(store.shape[which].tolist())[3 - store.spatial_dims :]
        patch = crop.size[3 - store.spatial_dims :]
        many = "every case is" if bool(small.all()) else f"{int(small.sum())} of {len(store.ids)} cases are"
        raise ValueError(
            f"{type(crop).__name__}: the patch {patch} does not fit: {many} smaller, such as {store.ids[which]} with "
            f"{shape} voxels; take a smaller patch, or pad (allow_smaller=True, or SpatialPadd before it)"
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
        needed = "channels first and 2 or 3 axes of space are needed (MONAI: EnsureChannelFirstd)"
        if not value.ndim:
            needed = "a number is no image: take it out of the keys of the chain's random transforms"
        raise ValueError(f'{name}: "{key}" has shape {tuple(value.shape)}; {needed}')
    return storable(value)


def _joined(volumes: list[Tensor]) -> Tensor:
    dtypes = {volume.dtype for volume in volumes}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return torch.cat([volume.reshape(-1).to(dtype) for volume in volumes])
