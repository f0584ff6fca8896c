"""A small uneven data set, and the batches that runs with dealt cases make of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hasten.augment.chain import Batch
from hasten.augment.make_program import cases_of_arena, make_segment
from hasten.augment.presets import default_chain
from hasten.augment.program import Program, Segment
from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig, SampleConfig
from hasten.distribute.case_assignment import CaseAssignment, RankCases
from hasten.feed.feed import Feed
from hasten.sample.patch_stages import DealingRounds, PatchStage, one_stage, stage_plan
from hasten.sample.share import WHOLE, Share
from tests.augment.stores import OFF
from tests.cache.sets import SPEC, write_case_set

SIZES = [(6, 9, 8), (12, 10, 9), (5, 5, 5), (9, 9, 9), (14, 8, 7), (6, 6, 6), (8, 12, 10), (7, 7, 9), (16, 12, 12)]
TRAINED = tuple(f"case{number}" for number in (0, 1, 2, 4, 5, 6, 7, 8))
"""Case 3 is for validation."""
PATCH, BATCH, STEPS = (4, 4, 4), 4, 24
SAMPLE = SampleConfig(
    patch=PATCH, batch_size=BATCH,
    **{**OFF, "foreground_prob": 0.5, "affine_prob": 0.5, "noise_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5)},
)  # fmt: skip
STAGES = ((0.5, 0.5),)
WHOLE_RUN = one_stage(PATCH, BATCH)


def case_set(folder: Path) -> CaseSet:
    return write_case_set(folder, SIZES, num_channels=2)


def assignment(every: int) -> CaseAssignment:
    voxels = {f"case{number}": float(a * b * c) for number, (a, b, c) in enumerate(SIZES)}
    return CaseAssignment(costs={name: voxels[name] for name in TRAINED}, parts=4, seed=3, every=every)


def segment_of(parts: RankCases, round: int, stage: PatchStage = WHOLE_RUN[0]) -> Segment:
    """The default augmentation of the cases of a rank in a round."""
    arena = parts.arena(round)
    return make_segment(
        default_chain(SAMPLE, patch=stage.patch, spatial_dims=3), cases_of_arena(arena, 3), batch_size=stage.batch_size,
        seed=5, train_cases=parts.dealt(round), share=parts.share,
    )  # fmt: skip


def program_of(parts: RankCases, *, first: int = 0, staged: bool = False) -> Program:
    """What a run makes its batches with. staged: with patches that grow."""
    plan = stage_plan(STAGES, STEPS, PATCH, (2, 2, 2), BATCH, True) if staged else WHOLE_RUN
    rounds = DealingRounds(stages=plan, samples=parts.assignment.round_samples)
    return Program(lambda round, stage: segment_of(parts, round, stage), rounds, first=first)


def run(parts: RankCases, *, first: int = 0, last: int = STEPS, staged: bool = False) -> Iterator[Batch]:
    """The batches of a rank."""
    program = program_of(parts, first=first, staged=staged)
    yield from Feed(program, first=first, last=last)


def read_from(cases: CaseSet, cache: CacheConfig, device: str = "cpu") -> Callable[[Sequence[str]], Arena]:
    """Reads some of the cases from the cache entry of all."""
    return lambda ids: get_arena(cases, SPEC, cache, device=device, own=ids)


def of_file(cases: CaseSet, cache: CacheConfig, every: int, share: Share = WHOLE) -> RankCases:
    """A rank that reads its cases from the cache entry of all."""
    return RankCases(assignment(every), share, read_from(cases, cache))


def digests(batch: Batch, pieces: int = 1) -> list[list[str]]:
    """Of each piece of a batch, one hash for each sample: image and label."""
    values = (batch["image"], batch["label"])
    return [
        [
            hashlib.sha256(image.numpy().tobytes() + label.numpy().tobytes()).hexdigest()[:16]
            for image, label in zip(*part, strict=True)
        ]
        for part in zip(*(value.chunk(pieces) for value in values), strict=True)
    ]
