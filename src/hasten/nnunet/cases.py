"""nnU-Net's preprocessed cases, each read once, into host memory, a memory-mapped file, or GPU memory."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hasten.cache.arena import PointSets, Store
from hasten.cache.memory import available_memory

_SHARE = 0.5
"""Share of the free memory of a GPU or the host that the cases may take."""
Locations = Mapping[Any, np.ndarray]
"""Voxels (n, 4) that nnU-Net stores for each class or region: channel, D, H, W."""


class Forms(NamedTuple):
    """Shapes and types of the cases, before their voxels are read."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, int, int], ...]
    channels: int
    locations: tuple[Locations, ...]
    label_type: torch.dtype
    label_keys: tuple[str, ...]
    """`label`, and `previous` in a cascade."""

    @property
    def voxels(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def num_bytes(self) -> int:
        return sum(self.voxels) * (4 * self.channels + len(self.label_keys) * self.label_type.itemsize)


def read_cases(
    dataset: Any,
    *,
    spatial_dims: int = 3,
    annotated: tuple[int, ...] | None = None,
    budget: int | None = None,
    folder: Path | None = None,
) -> Store:
    """All cases of nnU-Net's dataset, an object with `identifiers` and `load_case`, under the keys image and label.

    In the second stage of a cascade `load_case` gives the first stage's label map, too: the key previous.
    spatial_dims: 2 for slices along D. annotated: nnU-Net's name for all voxels that have a label, where some are to be
    ignored; they are the last of the point sets. Labels are stored with 1 added, so that 0 is nnU-Net's label -1, which
    lies outside of the body, as it does outside of the case. budget: bytes of host memory, by default half of what is
    available; beyond it the cases lie in a temporary file in `folder`. Raises ValueError for cases that
    can't be read or are unlike the first, and for a disk that is too small.
    """
    forms = _forms(dataset)
    budget = int(_SHARE * available_memory()) if budget is None else budget
    file = _temporary_file(forms.num_bytes, folder) if forms.num_bytes > budget else None
    total = sum(forms.voxels)
    image = _empty(total * forms.channels, torch.float32, file)
    labels = {key: _empty(total, forms.label_type, file) for key in forms.label_keys}
    start = 0
    for name, size in zip(forms.names, forms.voxels, strict=True):
        data, *maps, _ = dataset.load_case(name)
        target = image[start * forms.channels : (start + size) * forms.channels]
        target.copy_(torch.from_numpy(np.asarray(data[:], np.float32).reshape(-1)))
        for label, each in zip(labels.values(), maps, strict=False):
            label[start : start + size].copy_(torch.from_numpy(np.asarray(each[:], np.int16).reshape(-1) + 1))
        start += size
    sizes = torch.tensor(forms.voxels)
    return Store(
        values={"image": image, **labels}, channels={"image": forms.channels, **dict.fromkeys(labels, 1)},
        shape=torch.tensor(forms.shapes), offset=sizes.cumsum(0) - sizes, spatial_dims=spatial_dims, ids=forms.names,
        sets=_point_sets(forms, annotated),
    )  # fmt: skip


def placed(store: Store, device: torch.device) -> Store:
    """The cases, moved to the GPU if they take less than half of its free memory."""
    if device.type != "cuda":
        return store
    size = sum(value.nbytes for value in store.values.values())
    free, _ = torch.cuda.mem_get_info(device)
    return store.to(device) if size < _SHARE * free else store


def _forms(dataset: Any) -> Forms:
    shapes, locations, narrow, channels = [], [], True, 0
    for name in dataset.identifiers:
        try:
            data, seg, previous, properties = dataset.load_case(name)
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
        if previous is not None and math.prod(previous.shape) != math.prod(seg.shape):
            raise ValueError(
                f"{name}: the first stage's label map {tuple(previous.shape)} and the image {tuple(data.shape)} do not "
                "cover the same voxels; train the first stage again with the present plans"
            )
        label_keys = ("label",) if previous is None else ("label", "previous")
        # nnU-Net stores labels up to 127 in one byte.
        narrow = narrow and all(each.dtype.itemsize == 1 for each in (seg, previous) if each is not None)
    if not shapes:
        raise ValueError("this fold has no cases; correct splits_final.json beside the plans")
    return Forms(
        tuple(dataset.identifiers), tuple(shapes), channels, tuple(locations), torch.uint8 if narrow else torch.int16,
        label_keys,
    )  # fmt: skip


def _temporary_file(size: int, folder: Path | None) -> Path:
    where = folder or Path(tempfile.gettempdir())
    free = shutil.disk_usage(where).free
    if free < size:
        raise ValueError(
            f"{size / 2**30:.1f} GiB of preprocessed cases fit neither in half of the free memory nor in {where}, "
            f"which has {free / 2**30:.1f} GiB left; free memory, or set HASTEN_RAM, such as HASTEN_RAM=64GiB"
        )
    return where / "hasten_cases"


def _empty(size: int, dtype: torch.dtype, file: Path | None) -> Tensor:
    if file is None:
        return torch.empty(size, dtype=dtype)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name) as temporary:
        # The mapping keeps the deleted file alive until the process ends.
        return torch.from_file(temporary.name, shared=True, size=size, dtype=dtype)


def _point_sets(forms: Forms, annotated: tuple[int, ...] | None) -> PointSets:
    keys: set[Any] = {key for case in forms.locations for key in case} - {annotated}
    sets: Sequence[Any] = [*sorted(keys, key=str), *([] if annotated is None else [annotated])]
    rows: list[np.ndarray] = [np.empty(0, np.int32)]
    for case, (_, height, width) in zip(forms.locations, forms.shapes, strict=True):
        for key in sets:
            points = np.asarray(case.get(key, ())).reshape(-1, 4)[:, 1:].astype(np.int64)
            rows.append((points @ [height * width, width, 1]).astype(np.int32))
    counts = torch.tensor([len(row) for row in rows[1:]], dtype=torch.int64).view(len(forms.names), len(sets))
    first = (counts.view(-1).cumsum(0) - counts.view(-1)).view_as(counts)
    return PointSets(torch.from_numpy(np.concatenate(rows)), first, counts)
