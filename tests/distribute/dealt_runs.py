"""A small uneven data set, and the batches that runs with dealt cases make of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hasten.cache.arena import Arena
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig, SampleConfig
from hasten.distribute.exchange import SentHome
from hasten.distribute.parts import CaseParts, Deal, FileHome, Home
from hasten.feed.staged import StagedProgram, feed_of, make_staged, stage_plan
from hasten.sample.dealt import Dealt
from hasten.sample.program import BatchProgram, make_program
from hasten.sample.share import WHOLE, Share
from hasten.sample.types import BatchSpec
from tests.cache.sets import SPEC, write_case_set
from tests.sample.arenas import OFF

SIZES = [(6, 9, 8), (12, 10, 9), (5, 5, 5), (9, 9, 9), (14, 8, 7), (6, 6, 6), (8, 12, 10), (7, 7, 9), (16, 12, 12)]
TRAINED = tuple(f"case{number}" for number in (0, 1, 2, 4, 5, 6, 7, 8))
"""Case 3 is for validation."""
PATCH, BATCH, STEPS = (4, 4, 4), 4, 24
SAMPLE = SampleConfig(
    patch=PATCH, batch_size=BATCH,
    **{**OFF, "foreground_prob": 0.5, "affine_prob": 0.5, "noise_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5)},
)  # fmt: skip
STAGES = ((0.5, 0.5),)


def case_set(folder: Path) -> CaseSet:
    return write_case_set(folder, SIZES, num_channels=2)


def deal(every: int) -> Deal:
    voxels = {f"case{number}": float(a * b * c) for number, (a, b, c) in enumerate(SIZES)}
    return Deal(costs={name: voxels[name] for name in TRAINED}, parts=4, seed=3, every=every)


def run(
    home: Home, every: int, share: Share = WHOLE, *, first: int = 0, last: int = STEPS, staged: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of a rank."""
    plan = stage_plan(STAGES if staged else (), STEPS, PATCH, (2, 2, 2), BATCH, True)
    spec = BatchSpec(sample=SAMPLE, num_channels=2, spatial_dims=3)

    def make(arena: Arena, dealt: Dealt) -> BatchProgram | StagedProgram:
        def one(own: BatchSpec) -> BatchProgram:
            return make_program(own, arena.tables, dealt, 5, compile=False, pages=arena.pages, share=share)

        return make_staged(spec, plan, one) if staged else one(spec)

    program = CaseParts(deal(every), share, home).program(make, plan, first=first)
    yield from feed_of(program, device=torch.device("cpu"), first=first, last=last)


def file_home(cases: CaseSet, cache: CacheConfig, every: int, share: Share = WHOLE, **options: Any) -> FileHome:
    return FileHome(deal(every), share, cases, SPEC, cache, "cpu", **options)


def sent_home(cases: CaseSet, cache: CacheConfig, every: int, share: Share, **options: Any) -> SentHome:
    return SentHome(deal(every), share, cases, SPEC, cache, "cpu", **options)


def digests(batch: tuple[torch.Tensor, ...], pieces: int = 1) -> list[list[str]]:
    """Of each piece of a batch, one hash for each sample: image and label."""
    return [
        [
            hashlib.sha256(image.numpy().tobytes() + label.numpy().tobytes()).hexdigest()[:16]
            for image, label in zip(*part, strict=True)
        ]
        for part in zip(*(value.chunk(pieces) for value in batch), strict=True)
    ]
