"""nnU-Net's own arm: batchgeneratorsv2's transforms with the parameters of nnU-Net 2.8's trainer, on the CPU.

Cutting and stacking follow `nnUNetDataLoader.generate_train_batch`, with every patch at random (no oversampling of
foreground) and inside the volume, so that nothing is padded. Not taken over, all to this arm's benefit: volumes lie in
memory as they are, where nnU-Net decompresses blosc2 blocks for each patch; labels are not made anew for deep
supervision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.augments.loaders import stream
from benchmarks.augments.patches import Batch, Case, Nnunet, check_room

Loader = Literal["nondet", "dataloader", "inline"]
"""`nondet`: batchgenerators' NonDetMultiThreadedAugmenter, which nnU-Net uses; `dataloader`: torch's; `inline`: none,
as with nnU-Net's SingleThreadedAugmenter."""
QUEUE = 6
"""Batches that nnU-Net lets wait for each training."""


def nnunet(
    cases: Sequence[Case],
    work: Nnunet,
    *,
    loader: Loader = "nondet",
    workers: int = 2,
    seed: int = 0,
    mode_seg: Literal["bilinear", "nearest"] = "bilinear",
) -> Iterator[Batch]:
    """Batches of `work.batch` patches; labels int16.

    `mode_seg` is how labels are resampled: nnU-Net interpolates each class, and the largest wins; "nearest" is not
    nnU-Net's choice, but the same work as the other arms'. `seed` holds for "nondet".

    nnU-Net seeds no worker, whereupon all of them toss torch's coins alike; here each has a seed of its own.
    """
    check_room(cases, work.source)
    patches = Patches(cases, work, transforms(work, mode_seg))
    return _nondet(patches, workers, seed) if loader == "nondet" else _torch(patches, workers, loader)


def transforms(work: Nnunet, mode_seg: str) -> Any:
    """nnUNetTrainer's, with the blur's choices made: see `_settle`."""
    from batchgeneratorsv2.transforms.intensity.brightness import MultiplicativeBrightnessTransform
    from batchgeneratorsv2.transforms.intensity.contrast import BGContrast, ContrastTransform
    from batchgeneratorsv2.transforms.intensity.gamma import GammaTransform
    from batchgeneratorsv2.transforms.intensity.gaussian_noise import GaussianNoiseTransform
    from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
    from batchgeneratorsv2.transforms.spatial.low_resolution import SimulateLowResolutionTransform
    from batchgeneratorsv2.transforms.spatial.mirroring import MirrorTransform
    from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
    from batchgeneratorsv2.transforms.utils.random import RandomTransform
    from batchgeneratorsv2.transforms.utils.remove_label import RemoveLabelTansform

    own: dict[str, Any] = {"synchronize_channels": False, "p_per_channel": 1}
    blur = GaussianBlurTransform(
        blur_sigma=work.blur_sigma, synchronize_channels=False, synchronize_axes=False,
        p_per_channel=work.channel_prob, benchmark=True,
    )  # fmt: skip
    _settle(blur, work)
    lowres = SimulateLowResolutionTransform(
        scale=work.lowres_scale, synchronize_channels=False, synchronize_axes=True, ignore_axes=None,
        allowed_channels=None, p_per_channel=work.channel_prob,
    )  # fmt: skip
    brightness = MultiplicativeBrightnessTransform(multiplier_range=BGContrast(work.brightness_range), **own)
    contrast = ContrastTransform(contrast_range=BGContrast(work.contrast_range), preserve_range=True, **own)
    inverted, upright = (
        GammaTransform(gamma=BGContrast(work.gamma_range), p_invert_image=turned, p_retain_stats=1, **own)
        for turned in (1, 0)
    )
    noise = GaussianNoiseTransform(noise_variance=work.noise_std, p_per_channel=1, synchronize_channels=True)
    return ComposeTransforms([
        _spatial(work, mode_seg),
        RandomTransform(noise, apply_probability=work.noise_prob),
        RandomTransform(blur, apply_probability=work.blur_prob),
        RandomTransform(brightness, apply_probability=work.brightness_prob),
        RandomTransform(contrast, apply_probability=work.contrast_prob),
        RandomTransform(lowres, apply_probability=work.lowres_prob),
        RandomTransform(inverted, apply_probability=work.gamma_inverted_prob),
        RandomTransform(upright, apply_probability=work.gamma_prob),
        MirrorTransform(allowed_axes=(0, 1, 2)),
        RemoveLabelTansform(-1, 0),
    ])  # fmt: skip


def _spatial(work: Nnunet, mode_seg: str) -> Any:
    from batchgeneratorsv2.transforms.spatial.spatial import SpatialTransform

    angle = math.radians(work.rotate_deg)
    return SpatialTransform(
        work.patch, patch_center_dist_from_border=0, random_crop=False, p_elastic_deform=0,
        p_rotation=work.rotate_prob, rotation=(-angle, angle), p_scaling=work.scale_prob, scaling=work.scale_range,
        p_synchronize_scaling_across_axes=1, bg_style_seg_sampling=False, mode_seg=mode_seg,
        border_mode_seg="constant", padding_value_seg=-1,
    )  # fmt: skip


def _settle(blur: Any, work: Nnunet) -> None:
    """Let the blur find out now which convolution is faster for its kernels, on one thread as in a worker.

    It tries each of them 9 times at the first use and keeps what it found, which a training soon forgets but a
    benchmark that starts workers for every round would measure.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(20):  # 30 draws of a sigma or so, a quarter of which give the larger kernel
            blur(image=torch.zeros(1, *work.patch))
    finally:
        torch.set_num_threads(threads)


@dataclass(slots=True)
class Patches:
    """An endless source of batches, of the kind that NonDetMultiThreadedAugmenter asks for."""

    cases: Sequence[Case]
    work: Nnunet
    transforms: Any
    thread_id: int = 0

    def set_thread_id(self, thread_id: int) -> None:
        self.thread_id = thread_id

    def __next__(self) -> dict[str, torch.Tensor]:
        from threadpoolctl import threadpool_limits

        size = self.work.batch
        data = torch.empty((size, self.cases[0].image.shape[0], *self.work.patch))
        target = torch.empty((size, 1, *self.work.patch), dtype=torch.int16)
        with torch.no_grad(), threadpool_limits(limits=1, user_api=None):
            for number, index in enumerate(np.random.choice(len(self.cases), size)):  # noqa: NPY002
                result = self.transforms(**cut(self.cases[index], self.work.source))
                data[number] = result["image"]
                target[number] = result["segmentation"]
        return {"data": data, "target": target}


def cut(case: Case, side: int) -> dict[str, torch.Tensor]:
    """A cube of the case at random, as copies: the transforms write into what they are given."""
    corner = [np.random.randint(0, length - side + 1) for length in case.image.shape[1:]]  # noqa: NPY002
    box = (slice(None), *(slice(start, start + side) for start in corner))
    return {"image": case.image[box].clone(), "segmentation": case.label[box].to(torch.int16)}


def _nondet(patches: Patches, workers: int, seed: int) -> Iterator[Batch]:
    from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter

    seeds = list(range(seed, seed + workers))
    augmenter = NonDetMultiThreadedAugmenter(
        data_loader=patches, transform=None, num_processes=workers, num_cached=max(QUEUE, workers // 2), seeds=seeds,
        pin_memory=torch.cuda.is_available(), wait_time=0.002,
    )  # fmt: skip
    try:
        while True:
            batch = next(augmenter)
            yield batch["data"], batch["target"]
    finally:
        augmenter._finish()


def _torch(patches: Patches, workers: int, loader: Loader) -> Iterator[Batch]:
    # torch seeds its own generator and numpy's in every worker.
    with closing(stream(patches.__next__, workers if loader == "dataloader" else 0)) as result:
        for batch in result:
            yield batch["data"], batch["target"]
