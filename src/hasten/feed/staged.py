"""Progressive patch sizes: small patches first, whose steps are cheap, and full ones for the rest of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Protocol

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
    keep_voxels: as many times the patches in a batch as leave the voxels of a step no more than those of a full one; a
    whole number, so that what `batch_size` can be dealt among, every stage's can be.

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
        size = batch_size * (prod(patch) // prod(small)) if keep_voxels else batch_size
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
        """Samples (step + ahead) * B ... (step + ahead) * B + B - 1 of the stream, B being the stage's batch size.

        Of several ranks, the share of them that the stage's program makes.
        """
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
        return stage_at(self.stages, step)

    def samples(self, first: int, last: int) -> int:
        """Patches in steps `first` ... `last` - 1, of all ranks."""
        return sum((end - begin) * stage.batch_size for stage, begin, end in cut_by_stage(self.stages, first, last))

    def segments(self, first: int, last: int) -> list[Segment]:
        """Steps `first` ... `last` - 1, cut where the shape changes."""
        programs = dict(zip(self.stages, self.programs, strict=True))
        return [
            Segment(programs[stage], begin + stage.ahead, end + stage.ahead)
            for stage, begin, end in cut_by_stage(self.stages, first, last)
        ]

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1; each is the same whatever the first one was."""
        return batches_of(self.segments(first, last))


def batches_of(segments: Iterable[Segment]) -> Generator[Batch, None, None]:
    """The batches of segments, made in line."""
    for program, first, last in segments:
        if isinstance(program, MixedProgram):
            yield from map(program.merged, program.host_batches(first, last))
        else:
            yield from program.batches(first, last)
        del program  # as in `StagedFeed`


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
    """The stage of a step; steps after the last stage have its shape."""
    return next((stage for stage in stages if step < stage.last), stages[-1])


def cut_by_stage(stages: Sequence[Stage], first: int, last: int) -> list[tuple[Stage, int, int]]:
    """Steps `first` ... `last` - 1, cut where the stage changes: (stage, first, last) of each piece."""
    found = []
    for stage in stages:
        end = last if stage is stages[-1] else min(last, stage.last)
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


class InSegments(Protocol):
    """A `StagedProgram`, or what gives the batches of its steps in segments as that does."""

    def segments(self, first: int, last: int) -> Iterable[Segment]:
        """Steps `first` ... `last` - 1, cut where shape or program change; what is made lazily is made in turn."""
        ...


class StagedFeed:
    """Iterate over the batches of steps `first` ... `last` - 1 of a staged program, as `Feed` does for one shape.

    Each segment has a feed of its own, since its slots have one shape: where batches come from the host, the first one
    of a segment is waited for. A segment's program is let go before the next one is asked for.
    """

    def __init__(self, program: InSegments, *, device: torch.device, first: int, last: int) -> None:
        self.program, self.device, self.first, self.last = program, device, first, last
        self._waited = 0.0
        self._feed: Feed | None = None

    @property
    def wait_seconds(self) -> float:
        """Wall time so far in which the step stood still for data."""
        return self._waited + (self._feed.wait_seconds if self._feed is not None else 0.0)

    def __iter__(self) -> Generator[Batch, None, None]:
        segments = iter(self.program.segments(self.first, self.last))
        while True:
            begin = time.perf_counter()
            segment = next(segments, None)
            self._waited += time.perf_counter() - begin
            if segment is None:
                return
            self._feed = Feed(segment.program, device=self.device, first=segment.first, last=segment.last)
            with closing(iter(self._feed)) as batches:
                yield from batches
            self._waited, self._feed = self.wait_seconds, None
            del segment, batches  # the next segment's cases must not find this one's still in memory


def feed_of(program: Program | InSegments, *, device: torch.device, first: int, last: int) -> Feed | StagedFeed:
    """The feed of a program of any kind."""
    if isinstance(program, (BatchProgram, MixedProgram)):
        return Feed(program, device=device, first=first, last=last)
    return StagedFeed(program, device=device, first=first, last=last)


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
