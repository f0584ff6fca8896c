"""Progressive patch sizes: small patches first, whose steps are cheap, and full ones for the rest of the run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from hasten.config.schema import Triple
from hasten.feed.feed import Feed
from hasten.sample.mixed import MixedProgram
from hasten.sample.program import BatchProgram
from hasten.sample.types import BatchSpec

Batch = tuple[Tensor, Tensor]
Program = BatchProgram | MixedProgram


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Steps `first` ... `last` - 1 of a run, with batches of one shape."""

    first: int
    last: int
    patch: Triple
    batch_size: int
    ahead: int
    """Added to a step, it is the number of the batch among all batches of this size, from the first sample on."""

    @property
    def samples(self) -> int:
        """Samples drawn in this stage."""
        return (self.last - self.first) * self.batch_size


class Segment(NamedTuple):
    """Batches of one shape, as `program.batches(first, last)` (or `host_batches`) makes them."""

    program: Program
    first: int
    """In the program's own count, not in steps of the run."""
    last: int


def stage_plan(
    stages: Sequence[tuple[float, float]],
    steps: int,
    patch: Triple,
    divisor: Triple,
    batch_size: int,
    keep_voxels: bool = False,
    *,
    least: int = 1,
) -> tuple[Stage, ...]:
    """The stages of a run of `steps`; what the given ones leave over has full patches.

    stages: (share of the steps up to which it lasts, factor on each side of the patch), the shares rising:
    ((0.5, 0.5),) is the first half of the steps with half the sides. A side is rounded to a multiple of the network's
    `divisor` (D, H, W), is at least `least` times that, and never more than the full one; patches of a single multiple
    in every direction, whose coarsest features would be one voxel, are doubled along their first long side.
    keep_voxels: as many patches more in a batch as leave the voxels of a step no more than those of a full one.

    Samples are numbered through the run whatever the batches hold, so that the cases keep their order over the stages.
    Batches of a stage begin at a multiple of its batch size: fewer samples than that are left out between two stages.
    Raises ValueError for shares and factors that make no plan.
    """
    _check(stages)
    found: list[Stage] = []
    begin = sample = 0
    for share, factor in (*stages, (1.0, 1.0)):
        end = round(share * steps)
        if end <= begin:
            continue
        small = _patch(patch, divisor, factor, least)
        size = batch_size * prod(patch) // prod(small) if keep_voxels else batch_size
        if found and (found[-1].patch, found[-1].batch_size) == (small, size):
            found[-1] = replace(found[-1], last=end)
        else:
            number = -(-sample // size)
            found.append(Stage(first=begin, last=end, patch=small, batch_size=size, ahead=number - begin))
        begin, sample = end, (end + found[-1].ahead) * found[-1].batch_size
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedProgram:
    """`program(step)` gives the batch of that step; its shape is that of the step's stage."""

    stages: tuple[Stage, ...]
    programs: tuple[Program, ...]
    """One for each stage."""

    def __call__(self, step: int) -> Batch:
        """Samples (step + ahead) * B ... (step + ahead) * B + B - 1 of the stream, B being the stage's batch size."""
        return next(self.batches(step, step + 1))

    @property
    def compiled(self) -> bool:
        return all(program.compiled for program in self.programs)

    @property
    def why(self) -> str:
        if len({program.why for program in self.programs}) == 1:
            return self.programs[0].why
        parts = zip(self.stages, self.programs, strict=True)
        return "; ".join(f"{_sides(stage.patch)}: {program.why}" for stage, program in parts)

    @property
    def compile_seconds(self) -> float:
        return sum(program.compile_seconds for program in self.programs)

    def stage(self, step: int) -> Stage:
        """The stage of a step; steps after the last stage have its shape."""
        return next((stage for stage in self.stages if step < stage.last), self.stages[-1])

    def samples(self, first: int, last: int) -> int:
        """Patches in steps `first` ... `last` - 1."""
        return sum((end - begin) * stage.batch_size for stage, begin, end in self._parts(first, last))

    def segments(self, first: int, last: int) -> list[Segment]:
        """Steps `first` ... `last` - 1, cut where the shape changes."""
        programs = dict(zip(self.stages, self.programs, strict=True))
        return [
            Segment(programs[stage], begin + stage.ahead, end + stage.ahead)
            for stage, begin, end in self._parts(first, last)
        ]

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1; each is the same whatever the first one was."""
        for program, begin, end in self.segments(first, last):
            if isinstance(program, MixedProgram):
                yield from map(program.merged, program.host_batches(begin, end))
            else:
                yield from program.batches(begin, end)

    def _parts(self, first: int, last: int) -> list[tuple[Stage, int, int]]:
        found = []
        for stage in self.stages:
            end = last if stage is self.stages[-1] else min(last, stage.last)
            if first < end:
                found.append((stage, first, end))
                first = end
        return found


def make_staged(spec: BatchSpec, stages: Sequence[Stage], make: Callable[[BatchSpec], Program]) -> StagedProgram:
    """A program of these stages. make: makes the program of one spec, by `make_program` or `make_mixed`."""
    programs = (
        make(replace(spec, sample=replace(spec.sample, patch=stage.patch, batch_size=stage.batch_size)))
        for stage in stages
    )
    return StagedProgram(stages=tuple(stages), programs=tuple(programs))


class StagedFeed:
    """Iterate over the batches of steps `first` ... `last` - 1 of a staged program, as `Feed` does for one shape.

    Each stage has a feed of its own, since its slots have one shape: where batches come from the host, the first one of
    a stage is waited for.
    """

    def __init__(self, program: StagedProgram, *, device: torch.device, first: int, last: int) -> None:
        self.program, self.device, self.first, self.last = program, device, first, last
        self._feeds: list[Feed] = []

    @property
    def wait_seconds(self) -> float:
        """Wall time so far in which the step stood still for data."""
        return sum(feed.wait_seconds for feed in self._feeds)

    def __iter__(self) -> Generator[Batch, None, None]:
        for program, first, last in self.program.segments(self.first, self.last):
            feed = Feed(program, device=self.device, first=first, last=last)
            self._feeds.append(feed)
            with closing(iter(feed)) as batches:
                yield from batches


def feed_of(program: Program | StagedProgram, *, device: torch.device, first: int, last: int) -> Feed | StagedFeed:
    """The feed of a program of any kind."""
    kind = StagedFeed if isinstance(program, StagedProgram) else Feed
    return kind(program, device=device, first=first, last=last)  # type: ignore[arg-type]


def _check(stages: Sequence[tuple[float, float]]) -> None:
    for share, factor in stages:
        if not (0 < share <= 1 and 0 < factor <= 1):
            raise ValueError(
                f"sample.stages: ({share}, {factor}); give pairs of a share of the steps and a factor on the patch's "
                "sides, both above 0 and up to 1"
            )
    shares = [share for share, _ in stages]
    if shares != sorted(set(shares)):
        raise ValueError(f"sample.stages: the shares are {shares}; each stage must last longer than the one before it")


def _patch(patch: Triple, divisor: Triple, factor: float, least: int) -> Triple:
    sides = [
        min(side, unit * max(least, round(side * factor / unit))) for side, unit in zip(patch, divisor, strict=True)
    ]
    multiples = [side // unit for side, unit in zip(sides, divisor, strict=True)]
    if all(number <= 1 for number in multiples):
        # Norms cannot be taken over a single voxel.
        longest = max(range(3), key=lambda axis: patch[axis] / divisor[axis])
        sides[longest] = min(patch[longest], 2 * divisor[longest])
    depth, height, width = sides
    return depth, height, width


def _sides(patch: Triple) -> str:
    return " x ".join(map(str, patch))
