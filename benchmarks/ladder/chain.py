"""A task's preparation as MONAI's transforms, in the order of its fast training tutorial, and its network.

MONAI's arrays are (x, y, z), or (x, y), where a task's numbers are (D, H, W): `turned` brings the one into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.ladder.record import class_masks
from benchmarks.ladder.task import Task, TaskCase

if TYPE_CHECKING:
    from torch import Tensor, nn

KEYS = ["image", "label"]
Transforms = list[Callable[..., Any]]


def rows_of(cases: Sequence[TaskCase]) -> list[dict[str, Any]]:
    """Rows {"image", "label"} as MONAI's data sets take them."""
    return [
        {"image": case.image[0] if len(case.image) == 1 else list(case.image), "label": case.label} for case in cases
    ]


def turned(sizes: Sequence[Any], spatial_dims: int) -> tuple[Any, ...]:
    """(D, H, W) as (x, y, z), or as (x, y) of a 2-D task."""
    return tuple(sizes[3 - spatial_dims :])[::-1]


def network_of(task: Task, *, xyz: bool) -> nn.Module:
    """The task's network, for arrays (B, C, x, y, z) or, without `xyz`, (B, C, D, H, W); 2-D ones lack z or D."""
    from hasten.nets.build import build_network

    config = task.network
    if xyz and config.strides is not None:
        flat = task.spatial_dims == 2
        strides = tuple((1, w, h) if flat else (w, h, d) for d, h, w in config.strides)
        config = replace(config, strides=strides)
    return build_network(
        config,
        num_channels=len(task.channels),
        num_classes=task.num_outputs,
        spatial_dims=task.spatial_dims,
        patch=task.patch,
    )


def deterministic(task: Task, *, pad: bool = False, indices: bool = False) -> Transforms:
    """MONAI's transforms up to the first random one. Labels come out as class index (1, ...).

    pad: to the crop's size at least. indices: with the foreground and background voxels that crops are drawn from.
    """
    from monai import transforms as mt

    prepare = task.prepare
    flat = task.spatial_dims == 2
    chain: Transforms = [mt.LoadImaged(KEYS), mt.EnsureChannelFirstd(KEYS)]
    if prepare.orientation is not None and not flat:
        chain.append(mt.Orientationd(KEYS, axcodes=prepare.orientation, labels=None))
    if task.spacing is not None:
        pixdim = turned(task.spacing, task.spatial_dims)
        chain.append(mt.Spacingd(KEYS, pixdim=pixdim, mode=("bilinear", "nearest")))
    if prepare.intensity == "window":
        assert prepare.window is not None
        low, high = prepare.window
        chain.append(mt.ScaleIntensityRanged("image", a_min=low, a_max=high, b_min=0.0, b_max=1.0, clip=True))
    if prepare.crop_foreground:
        select: dict[str, Any] = {} if prepare.intensity == "window" else {"select_fn": above_lowest}
        chain.append(mt.CropForegroundd(KEYS, source_key="image", **select))
    if prepare.intensity == "zscore":
        chain.append(mt.NormalizeIntensityd("image", channel_wise=True))
    values = sorted(task.labels)
    if values != list(range(len(values))):
        chain.append(mt.MapLabelValued("label", orig_labels=values, target_labels=list(range(len(values)))))
    if pad:
        chain.append(mt.SpatialPadd(KEYS, spatial_size=turned(task.patch, task.spatial_dims)))
    if indices:
        # The tutorial takes background from voxels above 0 after windowing; z-scored images have no such threshold.
        inside = {"image_key": "image"} if prepare.intensity == "window" else {}
        chain.append(mt.FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg", **inside))
    return chain


def random_crop(task: Task) -> Callable[..., Any]:
    """Crops about a foreground voxel half of the time, from cached indices."""
    from monai.transforms import RandCropByPosNegLabeld

    return RandCropByPosNegLabeld(
        KEYS, label_key="label", spatial_size=turned(task.patch, task.spatial_dims), pos=1, neg=1,
        num_samples=task.peer.crops, fg_indices_key="label_fg", bg_indices_key="label_bg",
    )  # fmt: skip


def above_lowest(image: Tensor) -> Tensor:
    """(C, ...) bool: voxels above the lowest of their channel."""
    return image > image.flatten(1).amin(1).reshape(-1, *(1 for _ in image.shape[1:]))


class RegionMasks:
    """The label, class index (1, ...), as one mask for each region of the task, (R, ...) float.

    What MONAI's ConvertToMultiChannelBasedOnBratsClassesd is for one data set.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        return {**data, "label": class_masks(data["label"][0], self.task).float()}
