"""Augmented patches as MONAI's users feed them, each as its project advises, and as Hasten does.

A `Feed` takes a number of steps and gives that many batches (image, label), each (B, 1, x, y, z). It starts what it
needs (threads, worker processes) when it is called and ends it with the last batch, as one epoch does.

Augmentation, alike in all: crops about a foreground voxel half of the time, a flip of each axis with probability 0.5,
rotation by up to 15 degrees about each axis with scale 0.8..1.2 in one interpolation (linear, labels nearest) with
probability 0.5, brightness (0.15), gamma (0.15) and Gaussian noise (0.1).
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.ladder.chain import deterministic, random_crop
from benchmarks.tasks import bench_task, prepare_config

if TYPE_CHECKING:
    from hasten.augment.program import Program
    from hasten.cache.arena import Arena
    from hasten.config.schema import SampleConfig

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
STRENGTHS = {
    "ScaleIntensity.factors": (-BRIGHTNESS[1], BRIGHTNESS[1]),
    "Gamma.gamma": GAMMA[1],
    "GaussianNoise.std": (0.0, NOISE[1]),
}
"""The same as `augment.override` has them."""


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


def hasten_feed(
    data: Path,
    ids: Sequence[str],
    patch: tuple[int, int, int],
    batch_size: int,
    seed: int,
    *,
    device: str = "auto",
) -> Feed:
    """A feed of augmented batches of the cases `ids`, prepared before it is returned.

    `patch` is (D, H, W). Batches go on where the last call's ended.
    """
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig
    from hasten.feed.feed import Feed as HastenFeed
    from hasten.runtime.device import pick_device

    where = pick_device(device)
    cases = load_case_set(data)
    wanted = set(ids)
    cases = dataclasses.replace(cases, cases=tuple(case for case in cases.cases if case.id in wanted))
    with tempfile.TemporaryDirectory() as cache:
        home = "device" if where.type == "cuda" else "ram"
        config = CacheConfig(dir=cache, home=home)
        arena = get_arena(cases, prepare_config("mr", None), config, device=str(where))
    sample = sample_config(patch, batch_size)
    program = default_program(arena, sample, STRENGTHS, seed=seed, device=where)
    done = 0

    def feed(steps: int) -> Iterator[Batch]:
        nonlocal done
        first, done = done, done + steps
        for batch in HastenFeed(program, first=first, last=done):
            yield batch["image"], batch["label"]

    return feed


def default_program(
    arena: Arena,
    sample: SampleConfig,
    override: Mapping[str, object] | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Program:
    """The default augmentation of all cases of a 3-D arena, with fields of its operations changed by `override`."""
    from hasten.augment.make_program import cases_of_arena, make_program
    from hasten.augment.presets import default_chain
    from hasten.augment.run_chain import with_overrides

    assert sample.patch is not None
    chain = default_chain(sample, patch=sample.patch, spatial_dims=3, spacing=spacing)
    chain = dataclasses.replace(chain, ops=with_overrides(chain.ops, override or {}))
    cases = cases_of_arena(arena, 3)
    return make_program(chain, cases, batch_size=sample.batch_size, seed=seed, device=device)


def sample_config(patch: tuple[int, int, int], batch_size: int) -> SampleConfig:
    """The same augmentation in Hasten's terms."""
    from hasten.config.schema import SampleConfig

    return SampleConfig(
        patch=patch,
        batch_size=batch_size,
        foreground_prob=0.5,
        flip_prob=(0.5, 0.5, 0.5),
        affine_prob=AFFINE_PROB,
        rotate_deg=(ROTATE_DEG,) * 3,
        scale_range=(1 - SCALE, 1 + SCALE),
        brightness_prob=BRIGHTNESS[0],
        contrast_prob=0.0,
        gamma_prob=GAMMA[0],
        noise_prob=NOISE[0],
    )
