"""An arena in memory from items that are prepared already, such as those of a cached data set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.cache.arena import Arena, PointSets, Store
from hasten.prepare.points import foreground_points


def gather(
    items: Iterable[tuple[str, Any, Any]], *, spatial_dims: int, num_classes: int, max_points: int = 4096
) -> Arena:
    """Put items one behind the other.

    items: (name, image (C, D, H, W) or (C, H, W), label (1, D, H, W), (D, H, W) or 2-D likewise, whole numbers below
    num_classes). The image is kept in float16 if all are, else in float32. Raises ValueError naming the item.
    """
    names: list[str] = []
    images: list[Tensor] = []
    labels: list[Tensor] = []
    points: list[np.ndarray] = []
    for number, (name, image, label) in enumerate(items):
        volume, classes = _checked(name, _plain(image), _plain(label), spatial_dims, num_classes)
        if images and len(volume) != len(images[0]):
            raise ValueError(f"{name}: has {len(volume)} channels, the first item {len(images[0])}; make them alike")
        names.append(name)
        images.append(volume)
        labels.append(classes)
        points += foreground_points(classes.numpy(), num_classes, max_points, number)[0]
    if not images:
        raise ValueError("the data set is empty; give it items")
    dtype = torch.float16 if all(image.dtype == torch.float16 for image in images) else torch.float32
    sizes = torch.tensor([label.numel() for label in labels])
    counts = torch.tensor([array.size for array in points], dtype=torch.int64).view(len(images), num_classes - 1)
    starts = counts.reshape(-1).cumsum(0) - counts.reshape(-1)
    shapes = tuple((label.shape[0], label.shape[1], label.shape[2]) for label in labels)
    store = Store(
        values={
            "image": torch.cat([image.reshape(-1).to(dtype) for image in images]),
            "label": torch.cat([label.reshape(-1) for label in labels]),
        },
        channels={"image": len(images[0]), "label": 1},
        offset=sizes.cumsum(0) - sizes,
        shape=torch.tensor(shapes, dtype=torch.int64),
        spatial_dims=spatial_dims,
        ids=tuple(names),
        sets=PointSets(
            torch.from_numpy(np.concatenate(points) if points else np.zeros(0, np.int32)),
            starts.view_as(counts),
            counts,
        ),
    )
    return Arena(
        store=store, shapes=shapes, offsets=tuple(store.offset.tolist()), geometry=(), num_classes=num_classes,
        home="ram",
    )  # fmt: skip


def _plain(value: Any) -> Tensor:
    return torch.as_tensor(value).as_subclass(Tensor).detach().cpu()


def _checked(name: str, image: Tensor, label: Tensor, dims: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Image (C, D, H, W) and label (D, H, W) uint8."""
    if image.ndim != dims + 1:
        raise ValueError(
            f"{name}: its image has shape {tuple(image.shape)}; {dims}-D data need channels first and {dims} axes "
            "(MONAI: EnsureChannelFirstd)"
        )
    classes = label[0] if label.ndim == dims + 1 and len(label) == 1 else label
    if classes.shape != image.shape[1:]:
        raise ValueError(
            f"{name}: its label has shape {tuple(label.shape)}, its image {tuple(image.shape)}; "
            "one class index a voxel is needed"
        )
    low, high = (float(bound) for bound in torch.aminmax(classes)) if classes.numel() else (0.0, 0.0)
    broken = classes.is_floating_point() and bool((classes != classes.round()).any())
    if low < 0 or high >= num_classes or broken:
        raise ValueError(
            f"{name}: its label holds values from {low:g} to {high:g}; whole numbers from 0 to {num_classes - 1} are "
            "needed"
        )
    if dims == 2:
        image, classes = image[:, None], classes[None]
    return image, classes.to(torch.uint8).contiguous()
