"""Hasten's arm of `benchmarks.feed`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.feeds import AFFINE_PROB, BRIGHTNESS, GAMMA, NOISE, ROTATE_DEG, SCALE, Batch, Feed
from benchmarks.tasks import prepare_config

if TYPE_CHECKING:
    import torch

    from hasten.augment.program import Program
    from hasten.cache.arena import Arena
    from hasten.config.schema import SampleConfig


STRENGTHS = {
    "ScaleIntensity.factors": (-BRIGHTNESS[1], BRIGHTNESS[1]),
    "Gamma.gamma": GAMMA[1],
    "GaussianNoise.std": (0.0, NOISE[1]),
}
"""Those of `benchmarks.peers.feeds`, as `augment.override` has them."""


def hasten_feed(
    data: Path,
    ids: Sequence[str],
    patch: tuple[int, int, int],
    batch_size: int,
    seed: int,
    *,
    compile: bool = True,
    device: str = "auto",
) -> Feed:
    """A feed of augmented batches of the cases `ids`, prepared (and compiled) before it is returned.

    Augmentation as in `benchmarks.peers.feeds`: crop about foreground half of the time, three flips, rotation by 15
    degrees and scale 0.8..1.2 with probability 0.5, brightness, gamma, noise. `patch` is (D, H, W). Batches go on where
    the last call's ended. Raises RuntimeError where `compile` is asked for and fails, since the series would be eager.
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
    program = default_program(arena, sample, STRENGTHS, seed=seed, device=where, compile=compile)
    if compile and not program.compiled:
        raise RuntimeError(f"the batch program is not compiled: {program.why}")
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
    compile: bool = False,
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
    return make_program(chain, cases, batch_size=sample.batch_size, seed=seed, device=device, compile=compile)


def sample_config(patch: tuple[int, int, int], batch_size: int) -> SampleConfig:
    """The augmentation of `benchmarks.peers.feeds` in Hasten's terms."""
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
