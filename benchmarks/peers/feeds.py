"""The peers' ways to feed augmented patches, each as its project advises.

A `Feed` takes a number of steps and gives that many batches (image, label), each (B, 1, x, y, z). It starts what it
needs (threads, worker processes) when it is called and ends it with the last batch, as one epoch does.

Augmentation, alike in all: crops about a foreground voxel half of the time, a flip of each axis with probability 0.5,
rotation by up to 15 degrees about each axis with scale 0.8..1.2 in one interpolation (linear, labels nearest) with
probability 0.5, brightness (0.15), gamma (0.15) and Gaussian noise (0.1). Where they differ, the peer does less:
TorchIO transforms a volume once and cuts `samples` patches from it, and has no brightness factor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.ladder.chain import deterministic, random_crop
from benchmarks.tasks import bench_task

Batch = tuple[torch.Tensor, torch.Tensor]
Feed = Callable[[int], Iterator[Batch]]
Rows = Sequence[dict[str, Any]]
"""{"image", "label"} of each case."""

ROTATE_DEG = 15.0
SCALE = 0.2
AFFINE_PROB = 0.5
BRIGHTNESS = (0.15, 0.25)
"""Probability, and largest relative change."""
GAMMA = (0.15, (0.7, 1.5))
NOISE = (0.1, 0.1)
"""Probability, and largest standard deviation."""


def augmentation(patch: Sequence[int], samples: int) -> list[Any]:
    from monai import transforms as mt

    keys = ["image", "label"]
    size = tuple(patch)[::-1]
    return [
        random_crop(bench_task(None, patch=tuple(patch), crops=samples)),
        *(mt.RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(3)),
        mt.RandAffined(
            keys, prob=AFFINE_PROB, rotate_range=(math.radians(ROTATE_DEG),) * 3, scale_range=(SCALE,) * 3,
            mode=("bilinear", "nearest"), padding_mode="zeros", spatial_size=size, cache_grid=True,
        ),
        mt.RandScaleIntensityd("image", prob=BRIGHTNESS[0], factors=BRIGHTNESS[1]),
        mt.RandAdjustContrastd("image", prob=GAMMA[0], gamma=GAMMA[1]),
        mt.RandGaussianNoised("image", prob=NOISE[0], std=NOISE[1]),
    ]  # fmt: skip


def fixed(patch: Sequence[int]) -> list[Any]:
    return deterministic(bench_task(None, patch=tuple(patch)), pad=True, indices=True)


def monai_cached(rows: Rows, patch: Sequence[int], batch: int, samples: int, workers: int) -> Feed:
    """CacheDataset and ThreadDataLoader, as in the fast training tutorial."""
    from monai.data import CacheDataset, ThreadDataLoader, set_track_meta
    from monai.transforms import Compose, EnsureTyped

    set_track_meta(True)  # reading needs it
    plain = EnsureTyped(["image", "label"], track_meta=False)
    chain = Compose([*fixed(patch), plain, *augmentation(patch, samples)])
    data = CacheDataset(rows, chain, num_workers=workers, copy_cache=False, progress=False)

    def feed(steps: int) -> Iterator[Batch]:
        set_track_meta(False)
        cases = batch // samples
        loader = ThreadDataLoader(data, num_workers=0, batch_size=cases, sampler=_draw(data, steps * cases))
        yield from ((item["image"], item["label"]) for item in loader)

    return feed


def monai_regular(rows: Rows, patch: Sequence[int], batch: int, samples: int, workers: int) -> Feed:
    """Dataset and DataLoader with worker processes."""
    from monai.data import DataLoader, Dataset, set_track_meta
    from monai.transforms import Compose

    data = Dataset(rows, Compose([*fixed(patch), *augmentation(patch, samples)]))

    def feed(steps: int) -> Iterator[Batch]:
        set_track_meta(True)  # what it is by default; the fast arm turns it off
        cases = batch // samples
        loader = DataLoader(data, num_workers=workers, batch_size=cases, sampler=_draw(data, steps * cases))
        yield from ((item["image"], item["label"]) for item in loader)

    return feed


def _draw(data: Any, count: int) -> torch.utils.data.Sampler[int]:
    return torch.utils.data.RandomSampler(data, replacement=count > len(data), num_samples=count)


def torchio_queue(
    rows: Rows, patch: Sequence[int], batch: int, samples: int, workers: int, num_classes: int = 3
) -> Feed:
    """SubjectsDataset, LabelSampler and Queue as in TorchIO's guide to patch-based training.

    Its queue fills in `workers` processes and the loader behind it has none, as the guide asks. Volumes are read and
    prepared once and kept in memory, which the guide leaves open and which is the faster choice here.
    """
    import torchio as tio

    size = tuple(patch)[::-1]

    def prepare(row: dict[str, str]) -> tio.Subject:
        subject = tio.Subject(image=tio.ScalarImage(row["image"]), label=tio.LabelMap(row["label"]))
        subject = tio.Compose([tio.ToCanonical(), tio.ZNormalization()])(subject)
        room = tuple(max(side, least) for side, least in zip(subject.spatial_shape, size, strict=True))
        return tio.CropOrPad(room)(subject)

    subjects = [prepare(row) for row in rows]
    transform = tio.Compose([
        tio.RandomFlip(axes=(0, 1, 2), flip_probability=0.5),
        tio.RandomAffine(scales=SCALE, degrees=ROTATE_DEG, image_interpolation="linear", p=AFFINE_PROB),
        tio.RandomGamma(log_gamma=tuple(math.log(value) for value in GAMMA[1]), p=GAMMA[0]),
        tio.RandomNoise(std=(0, NOISE[1]), p=NOISE[0]),
    ])  # fmt: skip
    chances = {0: 1.0, **dict.fromkeys(range(1, num_classes), 1 / (num_classes - 1))}  # half foreground
    sampler = tio.LabelSampler(size, "label", label_probabilities=chances)

    def feed(steps: int) -> Iterator[Batch]:
        count = steps * batch // samples
        drawn = random.sample(subjects, count) if count <= len(subjects) else random.choices(subjects, k=count)
        queue = tio.Queue(
            tio.SubjectsDataset(drawn, transform=transform), max_length=min(300, count * samples),
            samples_per_volume=samples, sampler=sampler, num_workers=workers,
        )  # fmt: skip
        for item in tio.SubjectsLoader(queue, batch_size=batch, num_workers=0):
            yield item["image"][tio.DATA], item["label"][tio.DATA]

    return feed
