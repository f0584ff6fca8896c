"""Validation: label maps of the held-out cases, or masks of their regions, counted as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from hasten.distribute.balance import case_costs, validation_share
from hasten.engine.infer import infer_labels, padded_size
from hasten.engine.metric import Dice, counts_of, dice_of
from hasten.engine.metrics.gather import counts_over_ranks
from hasten.engine.parts import Parts
from hasten.observe.ranges import VALIDATION, Range


@Range(VALIDATION)
def validate(parts: Parts, network: nn.Module, seconds: list[float] | None = None) -> Dice:
    """Dice and IoU over the validation cases, on the prepared voxels. network: as it is trained, but not compiled.

    Each rank looks at cases of its own, and what they count is added up, exactly. seconds: what each case took in the
    validation before, empty for voxels; shares are of like costs by it. It is replaced by what they took in this one.
    """
    planned, arena, world = parts.planned, parts.arena, parts.step.strategy.world
    cases = arena.index(tuple(case.id for case in planned.validation))
    mine = validation_share(validation_costs(parts, seconds or ()), world)
    own = [cases[position] for position in mine]
    regions = planned.members
    counts = torch.zeros(len(cases), len(planned.class_names), 3, dtype=torch.int64)
    taken = torch.zeros(len(cases), dtype=torch.float64)
    training = network.training
    network.eval()
    before = time.perf_counter()
    for position, prediction in infer_labels(network, [arena.image(case) for case in own], parts.inference):
        label = arena.label(own[position]).to(prediction.device)
        counts[mine[position]] = counts_of(prediction, label, num_classes=arena.num_classes, regions=regions)
        now = time.perf_counter()
        taken[mine[position]], before = now - before, now
    network.train(training)
    total, all_taken = counts_over_ranks(counts, counts.dtype), counts_over_ranks(taken, taken.dtype)
    assert total is not None
    assert all_taken is not None
    if seconds is not None:
        seconds[:] = all_taken.tolist()
    return dice_of(total, planned.class_names)


def validation_costs(parts: Parts, seconds: Sequence[float] = ()) -> list[float]:
    """Of each validation case, in their order. seconds: as `validate` tells them; none for voxels."""
    arena = parts.arena
    cases = arena.index(tuple(case.id for case in parts.planned.validation))
    shapes = [padded_size(tuple(arena.label(case).shape), parts.inference) for case in cases]  # type: ignore[arg-type]
    return case_costs(shapes, seconds)
