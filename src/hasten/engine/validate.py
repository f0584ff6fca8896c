"""Validation: label maps of the held-out cases, counted as they come."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hasten.engine.infer import infer_labels
from hasten.engine.metric import Dice, dice_of, overlap_counts
from hasten.engine.parts import Parts
from hasten.observe.ranges import VALIDATION, Range


@Range(VALIDATION)
def validate(parts: Parts, network: nn.Module) -> Dice:
    """Dice over the validation cases, on the prepared voxels. network: of the kind that is trained, not compiled."""
    planned, arena = parts.planned, parts.arena
    cases = arena.index(tuple(case.id for case in planned.validation))
    counts: list[Tensor] = [torch.zeros(0)] * len(cases)
    training = network.training
    network.eval()
    for position, prediction in infer_labels(network, [arena.image(case) for case in cases], parts.inference):
        label = arena.label(cases[position]).to(prediction.device)
        counts[position] = overlap_counts(prediction, label, arena.num_classes)
    network.train(training)
    return dice_of(torch.stack(counts).cpu(), planned.class_names)
