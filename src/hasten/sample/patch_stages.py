"""Patch size, batch size and dealing round of each step of a run: functions of the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from hasten.config.schema import Triple


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchStage:
    """Steps `first` ... `last` - 1 of a run, with batches of one shape."""

    first: int
    last: int
    patch: Triple
    batch_size: int
    ahead: int
    """Added to a step, it is the number of the batch among all batches of this size, from the first sample on."""


def one_stage(patch: Triple, batch_size: int) -> tuple[PatchStage, ...]:
    """The stages of a run whose patches keep their size, however many steps it has."""
    return (PatchStage(first=0, last=1, patch=patch, batch_size=batch_size, ahead=0),)


def stage_plan(
    stages: Sequence[tuple[float, float]],
    steps: int,
    patch: Triple,
    divisor: Triple,
    batch_size: int,
    keep_voxels: bool = False,
    *,
    least: int = 1,
) -> tuple[PatchStage, ...]:
    """The stages of a run of `steps`; steps that the given ones leave over have full patches.

    stages: (share of the steps up to which it lasts, factor on each side of the patch), the shares rising:
    ((0.5, 0.5),) is the first half of the steps with half the sides. A side is rounded to a multiple of the network's
    `divisor` (D, H, W), is at least `least` times that, and never more than the full one; patches of a single multiple
    in every direction, whose coarsest features would be one voxel, are doubled along their first long side.
    keep_voxels: as many times the patches in a batch as leave the voxels of a step no more than those of a full one; a
    whole number, so that what `batch_size` can be dealt among, every stage's can be.

    Samples are numbered through the run, whatever the batch size, so that the cases keep their order over the stages.
    Batches of a stage begin at a multiple of its batch size: fewer samples than that are left out between two stages.
    Raises ValueError for shares and factors that make no plan.
    """
    _check(stages)
    plan: list[PatchStage] = []
    begin = sample = 0
    for share, factor in (*stages, (1.0, 1.0)):
        end = round(share * steps)
        if end <= begin:
            continue
        small = _patch(patch, divisor, factor, least)
        size = batch_size * (prod(patch) // prod(small)) if keep_voxels else batch_size
        if plan and (plan[-1].patch, plan[-1].batch_size) == (small, size):
            plan[-1] = replace(plan[-1], last=end)
        else:
            number = -(-sample // size)
            plan.append(PatchStage(first=begin, last=end, patch=small, batch_size=size, ahead=number - begin))
        begin, sample = end, (end + plan[-1].ahead) * plan[-1].batch_size
    return tuple(plan)


def stage_at(stages: Sequence[PatchStage], step: int) -> PatchStage:
    """The stage of a step; steps after the last stage have its shape."""
    return next((stage for stage in stages if step < stage.last), stages[-1])


def cut_by_stage(stages: Sequence[PatchStage], first: int, last: int) -> list[tuple[PatchStage, int, int]]:
    """Steps `first` ... `last` - 1, cut where the stage changes: (stage, first, last) of each piece."""
    pieces = []
    for stage in stages:
        end = last if stage is stages[-1] else min(last, stage.last)
        if first < end:
            pieces.append((stage, first, end))
            first = end
    return pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class DealingRounds:
    """The round that each step of a run belongs to, if the cases are redistributed every `samples` samples.

    A round's first step is the first whose batch begins after `samples` times the number of the round.
    """

    stages: tuple[PatchStage, ...]
    """Stages of the whole run; one where patches keep their size."""
    samples: int = 0
    """Samples in one round, over all ranks; 0: one round is the whole run."""

    def at(self, step: int) -> int:
        """The round of a step."""
        stage = stage_at(self.stages, step)
        return (step + stage.ahead) * stage.batch_size // self.samples if self.samples else 0

    def cut(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Steps `first` ... `last` - 1, cut where a round ends: (round, first, last) of each piece."""
        if not self.samples:
            return [(0, first, last)] if first < last else []
        pieces: list[tuple[int, int, int]] = []
        for stage, begin, end in cut_by_stage(self.stages, first, last):
            while begin < end:
                number = (begin + stage.ahead) * stage.batch_size // self.samples
                after = -(-(number + 1) * self.samples // stage.batch_size) - stage.ahead
                until = min(end, after)
                if pieces and pieces[-1][0] == number:
                    pieces[-1] = (number, pieces[-1][1], until)
                else:
                    pieces.append((number, begin, until))
                begin = until
        return pieces


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
    if all(side // unit <= 1 for side, unit in zip(sides, divisor, strict=True)):
        # Norms cannot be taken over a single voxel.
        longest = max(range(3), key=lambda axis: patch[axis] / divisor[axis])
        sides[longest] = min(patch[longest], 2 * divisor[longest])
    depth, height, width = sides
    return depth, height, width
