"""Validation: label maps of the held-out cases, counted as they come."""

from __future__ import annotations

import torch
from torch import nn

from hasten.distribute.balance import validation_share
from hasten.engine.infer import infer_labels
from hasten.engine.metric import Dice, dice_of, overlap_counts
from hasten.engine.metrics.gather import sum_over_ranks
from hasten.engine.parts import Parts
from hasten.observe.ranges import VALIDATION, Range


@Range(VALIDATION)
def validate(parts: Parts, network: nn.Module) -> Dice:
    """Dice over the validation cases, on the prepared voxels. network: of the kind that is trained, not compiled.

    Each rank looks at cases of its own, of like numbers of voxels in all; what they count is added up, exactly.
    """
    planned, arena, world = parts.planned, parts.arena, parts.step.strategy.world
    cases = arena.index(tuple(case.id for case in planned.validation))
    mine = validation_share([arena.label(case).numel() for case in cases], world)
    own = [cases[position] for position in mine]
    counts = torch.zeros(len(cases), arena.num_classes - 1, 3, dtype=torch.int64)
    training = network.training
    network.eval()
    for position, prediction in infer_labels(network, [arena.image(case) for case in own], parts.inference):
        label = arena.label(own[position]).to(prediction.device)
        counts[mine[position]] = overlap_counts(prediction, label, arena.num_classes)
    network.train(training)
    total = sum_over_ranks(counts, counts.dtype)
    assert total is not None
    return dice_of(total, planned.class_names)
