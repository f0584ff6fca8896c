"""Validation: label maps of the held-out cases, or masks of their regions, counted as they come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from hasten.config.load import to_dict
from hasten.config.schema import Triple
from hasten.distribute.balance import balance_sentence, case_costs, partition
from hasten.engine.blend import window_starts
from hasten.engine.components import RunComponents
from hasten.engine.dice import Dice, counts_of, dice_of
from hasten.engine.examples import EXAMPLE_CASES
from hasten.engine.foreground import training_spacing
from hasten.engine.infer import Inference, infer_labels, padded_size
from hasten.engine.measure import Switch
from hasten.engine.metrics.streamed import counts_over_ranks
from hasten.observe.ranges import VALIDATION, Range


@Range(VALIDATION)
def validate(
    components: RunComponents,
    network: nn.Module,
    seconds: list[float] | None = None,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Dice | None:
    """Dice and IoU over the validation cases, on the prepared voxels. network: as it is trained, but not compiled.

    expired: checked before each case; once it is true the validation ends, and the result is None.

    Each rank validates its own cases, and the integer counts are summed over the ranks. seconds: duration of each case
    in the previous validation, which balances the ranks' shares; empty to balance by voxels. It is replaced by the
    durations of this validation.
    """
    planned, arena, world = components.planned, components.arena, components.step.strategy.world
    cases = arena.index(tuple(case.id for case in planned.validation))
    rank_positions = partition(validation_costs(components, seconds or ()), world.size)[world.rank]
    rank_cases = [cases[position] for position in rank_positions]
    regions = planned.members
    counts = torch.zeros(len(cases), len(planned.class_names), 3, dtype=torch.int64)
    case_seconds, through = torch.zeros(len(cases), dtype=torch.float64), torch.zeros(len(cases), dtype=torch.int64)
    training = network.training
    network.eval()
    before = time.perf_counter()
    predictions = infer_labels(network, [arena.image(case) for case in rank_cases], components.inference)
    while not expired() and (prediction_at := next(predictions, None)) is not None:
        position, prediction = prediction_at
        label = arena.label(rank_cases[position]).to(prediction.device)
        counts[rank_positions[position]] = counts_of(
            prediction, label, num_classes=arena.num_classes, regions=regions, ignore_index=planned.ignore_index
        )
        now = time.perf_counter()
        case_seconds[rank_positions[position]], before = now - before, now
        through[rank_positions[position]] = 1
    network.train(training)
    total, all_seconds, all_through = (counts_over_ranks(each) for each in (counts, case_seconds, through))
    assert total is not None
    assert all_seconds is not None
    assert all_through is not None
    if not bool(all_through.all()):
        return None
    if seconds is not None:
        seconds[:] = all_seconds.tolist()
    return dice_of(total, planned.class_names)


class CaseEvaluator:
    """The `Evaluator` of a segmentation run: Dice and IoU over the held-out cases."""

    def __init__(self, components: RunComponents) -> None:
        world, cases = components.step.strategy.world, len(components.planned.validation)
        self.components = components
        self.metric: str = components.train.metric
        self.repeated = min(1.0, EXAMPLE_CASES / cases)
        self._case_seconds: list[float] = []
        if world.size > 1:
            costs = validation_costs(components)
            text = balance_sentence(costs, partition(costs, world.size))
            components.engaged["validation cases"] = Switch(True, text)

    def __call__(self, network: nn.Module, *, expired: Callable[[], bool] = lambda: False) -> Dice | None:
        """Run `validate` on the components of the run."""
        return validate(self.components, network, self._case_seconds, expired=expired)

    def expected_seconds(self, network: nn.Module) -> float:
        """Estimated duration of a validation, from the time of its smallest case."""
        arena, inference, world = self.components.arena, self.components.inference, self.components.step.strategy.world
        cases = arena.index(tuple(case.id for case in self.components.planned.validation))
        voxels = [_voxels(inference, tuple(arena.label(case).shape)) for case in cases]  # type: ignore[arg-type]
        smallest = voxels.index(min(voxels))
        training = network.training
        network.eval()
        for _ in range(2):  # kernels are chosen in the first
            begin = time.perf_counter()
            for _, labels in infer_labels(network, [arena.image(cases[smallest])], inference):
                labels.cpu()
            elapsed = time.perf_counter() - begin
        network.train(training)
        return elapsed * sum(voxels) / voxels[smallest] / world.size

    def content(self, network: nn.Module, score: Dice | None, step: int) -> dict[str, Any]:
        """What a prediction needs: the validated weights and everything to rebuild their network and its input."""
        planned = self.components.planned
        case_set = planned.case_set
        return {
            "weights": network.state_dict(),
            "config": to_dict(planned.config),
            "labels": {str(value): name for value, name in case_set.labels.items()},
            "regions": {name: list(members) for name, members in case_set.regions.items()},
            "region_values": dict(case_set.region_values),
            "channels": list(case_set.channels),
            "spatial_dims": case_set.spatial_dims,
            "foreground": dict(planned.foreground),
            "spacing": training_spacing(planned.fingerprint.spacings),
            "step": step,
            "dice": score.mean if score is not None else math.nan,
            "iou": score.iou if score is not None else math.nan,
        }


def _voxels(how: Inference, shape: Triple) -> int:
    """Voxels of a volume that go through the network, those in several windows as often."""
    size = padded_size(shape, how)
    windows = [len(window_starts(side, patch, how.overlap)) for side, patch in zip(size, how.patch, strict=True)]
    return prod(size) if prod(size) <= how.whole_up_to else prod(windows) * prod(how.patch)


def validation_costs(components: RunComponents, seconds: Sequence[float] = ()) -> list[float]:
    """Cost of each validation case, in their order. seconds: as `validate` measures them; empty for voxels."""
    arena = components.arena
    cases = arena.index(tuple(case.id for case in components.planned.validation))
    shapes = [padded_size(tuple(arena.label(case).shape), components.inference) for case in cases]  # type: ignore[arg-type]
    return case_costs(shapes, seconds)
