"""Validation: label maps of the held-out cases, or masks of their regions, counted as they come."""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from hasten.cache.arena import Arena
from hasten.config.decision import Accelerator, Accelerators
from hasten.config.load import to_dict
from hasten.config.schema import Triple
from hasten.distribute.case_assignment import partition
from hasten.distribute.consensus import broadcast_from_rank0
from hasten.evaluation.dice import Dice, OwnLabels, added_over_ranks, counts_of, dice_of, is_resampled
from hasten.evaluation.examples import EXAMPLE_CASES
from hasten.observe.ranges import VALIDATION, Range
from hasten.prediction.canvas import window_starts
from hasten.prediction.foreground import training_spacing
from hasten.prediction.infer import Inference, infer_labels, infer_on_own_grid, padded_size
from hasten.prediction.windows import volume_shape
from hasten.training.components import RunComponents
from hasten.training.plan import RunPlan

log = logging.getLogger(__name__)

_SMALL_OVERLAP = 0.25
"""Overlap of windows in a shorter validation, before fewer cases are validated."""


@Range(VALIDATION)
def validate(
    components: RunComponents,
    network: nn.Module,
    *,
    shorter: Shorter | None = None,
    room: Callable[[], float] = lambda: math.inf,
    own_labels: OwnLabels | None = None,
) -> tuple[Dice, bool]:
    """Dice and IoU over the validation cases, on the images' own voxels, and whether this rank validated all of its.

    network: as it is trained, but not compiled. own_labels: the label maps of resampled cases, kept for the next
    validation. shorter: fewer cases, or a faster inference, than the run's. room: seconds that are left, asked for
    after each case; where a further one does not fit, the validation ends, and the result is that of the cases before.

    Each rank validates its own cases, as many voxels as the others, and the integer counts are summed over the ranks.
    """
    planned, arena, world = components.planned, components.arena, components.step.strategy.world
    shorter = shorter or Shorter(cases=tuple(range(len(planned.validation))), inference=components.inference)
    cases = arena.index(tuple(case.id for case in planned.validation))
    sizes = [padded_size(arena.shapes[cases[position]], components.inference) for position in shorter.cases]
    shares = partition([float(prod(size)) for size in sizes], world.size)
    rank_positions = [shorter.cases[number] for number in shares[world.rank]]
    rank_cases = [cases[position] for position in rank_positions]
    counts = torch.zeros(len(cases), len(planned.class_names), 3, dtype=torch.int64)
    training = network.training
    network.eval()
    before, longest, done = time.perf_counter(), 0.0, 0
    own_labels = own_labels or own_labels_of(planned)
    count = partial(
        counts_of, num_classes=arena.num_classes, regions=planned.members, ignore_index=planned.ignore_index
    )
    predictions = _predictions(network, arena, rank_cases, shorter.inference)
    while (longest == 0 or room() > longest) and (prediction_at := next(predictions, None)) is not None:
        position, prediction = prediction_at
        counted, geometry = rank_positions[position], arena.geometry[rank_cases[position]]
        if is_resampled(geometry):
            counts[counted] = own_labels.counts(prediction, planned.validation[counted], geometry)
        else:
            label = arena.label(rank_cases[position]).to(prediction.device)
            counts[counted] = count(prediction, label)
        now = time.perf_counter()
        longest, before, done = max(longest, now - before), now, done + 1
    network.train(training)
    return dice_of(added_over_ranks(counts), planned.class_names), done == len(rank_cases)


def own_labels_of(planned: RunPlan) -> OwnLabels:
    """The label maps of a run's cases, of which none is read yet."""
    return OwnLabels(planned.case_set.labels, ignore=planned.case_set.ignore, regions=planned.members)


def _predictions(
    network: nn.Module, arena: Arena, cases: Sequence[int], inference: Inference
) -> Iterator[tuple[int, Tensor]]:
    """Position in `cases` and labels of each, on the voxels of the image's file, each as soon as it is known."""
    resampled = [at for at, case in enumerate(cases) if is_resampled(arena.geometry[case])]
    same = [at for at in range(len(cases)) if at not in resampled]
    for position, labels in infer_labels(network, [arena.image(cases[at]) for at in same], inference):
        yield same[position], labels
    for at in resampled:
        yield at, infer_on_own_grid(network, arena.image(cases[at]), arena.geometry[cases[at]], inference)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Seconds of a validation for each voxel."""

    network_s: float
    """Seconds for a voxel of the windows that go through the network."""
    grid_s: float
    """Seconds for a prepared voxel, to have its scores on the voxels of the image's file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shorter:
    """What a validation covers, and by which inference."""

    cases: tuple[int, ...]
    """Positions among the validation cases."""
    inference: Inference


class CaseEvaluator:
    """The `Evaluator` of a segmentation run: Dice and IoU over the held-out cases."""

    def __init__(self, components: RunComponents) -> None:
        cases = len(components.planned.validation)
        self.components = components
        self.metric: str = components.train.metric
        self._whole = Shorter(cases=tuple(range(cases)), inference=components.inference)
        self.covers = self._whole
        """What a validation covers."""
        self._own_labels = own_labels_of(components.planned)
        self._rates: Rates | None = None
        self._timed = False
        """Whether the rates are those of a validation, and not of a part of a case."""
        self._shortened: str | None = None
        """What a shorter validation covers; None for whole ones."""
        self._last_shortened: str | None = None
        """What the last validation covered, if it was a shorter one; None for a whole one."""

    @property
    def accelerators(self) -> Accelerators:
        if self._last_shortened is None:
            return {}
        return {"shorter validation": Accelerator(True, "measured", self._last_shortened)}

    @property
    def repeated(self) -> float:
        return min(1.0, EXAMPLE_CASES / len(self.covers.cases))

    def __call__(self, network: nn.Module, *, room: Callable[[], float] = lambda: math.inf) -> Dice:
        """Run `validate` on the components of the run."""
        begin = time.perf_counter()
        self._last_shortened = self._shortened
        dice, whole = validate(self.components, network, shorter=self.covers, room=room, own_labels=self._own_labels)
        if self._rates is not None and whole:
            pace = (time.perf_counter() - begin) / self._expected(self.covers)
            self._rates = Rates(network_s=pace * self._rates.network_s, grid_s=pace * self._rates.grid_s)
            self._timed = True
        return dice

    def fit(self, network: nn.Module, seconds: float) -> float:
        """Shorten all validations: no mirror images, a smaller overlap, fewer cases, no overlap, until they fit.

        By the time of the last validation; before the first one, by that of a part of a case.
        """
        world, whole = self.components.step.strategy.world, self._whole
        if not self._timed:
            self._rates = self._measured_rates(network)
        self._rates = broadcast_from_rank0(world, self._rates)
        told, self.covers, expected = self.covers, whole, self._expected(whole)
        whole_s, said = expected, "the validation is not shortened after all"
        self._shortened = None
        for covers in self._shorter(whole, seconds):
            if expected <= seconds:
                break
            self.covers, expected = covers, self._expected(covers)
        if self.covers != whole:
            how, usual = self.covers.inference, whole.inference
            mirrored = ", no mirror images" if how.flip_axes != usual.flip_axes else ""
            overlap = f", windows that overlap by {how.overlap:g}" if how.overlap != usual.overlap else ""
            text = (
                f"{len(self.covers.cases)} of {len(whole.cases)} cases{mirrored}{overlap}: about {expected:.1f} s, "
                f"where a validation of all would take {whole_s:.1f} s of the time for the run"
            )
            self._shortened = text
            said = f"the validation is shortened to {text}"
        if world.first and self.covers != told:
            log.warning(said)
        return expected

    def _shorter(self, whole: Shorter, seconds: float) -> Iterator[Shorter]:
        """Shorter and shorter validations. seconds: that there are for one."""
        inference = dataclasses.replace(whole.inference, flip_axes=())
        yield dataclasses.replace(whole, inference=inference)
        size = self.components.step.strategy.world.size
        for overlap in (min(_SMALL_OVERLAP, inference.overlap), 0.0):
            inference = dataclasses.replace(inference, overlap=overlap)
            faster = dataclasses.replace(whole, inference=inference)
            yield faster
            yield dataclasses.replace(faster, cases=_within(self._case_costs(faster), size * seconds))

    def _expected(self, covers: Shorter) -> float:
        """Seconds that a validation should take, its cases shared among the ranks."""
        return sum(self._case_costs(covers)) / self.components.step.strategy.world.size

    def _case_costs(self, covers: Shorter) -> list[float]:
        """Seconds that each case should take; those in several windows or mirror images count as often."""
        assert self._rates is not None
        arena, mirrored = self.components.arena, 2 ** len(covers.inference.flip_axes)
        costs: list[float] = []
        for case in arena.index(tuple(self.components.planned.validation[position].id for position in covers.cases)):
            shape, geometry = arena.shapes[case], arena.geometry[case]
            grid_s = self._rates.grid_s * prod(shape) if is_resampled(geometry) else 0.0
            costs.append(mirrored * self._rates.network_s * _voxels(covers.inference, shape) + grid_s)
        return costs

    def _measured_rates(self, network: nn.Module) -> Rates:
        """Rates of a part of a case as large as a window, with and without the voxels of the image's file."""
        arena, inference = self.components.arena, dataclasses.replace(self._whole.inference, flip_axes=())
        case = arena.index((self.components.planned.validation[0].id,))[0]
        geometry, (depth, height, width) = arena.geometry[case], inference.window
        part = arena.image(case)[:, :depth, :height, :width]
        shape = volume_shape(part)
        sides = zip(shape, geometry.crop_shape, geometry.shape, strict=True)
        own_depth, own_height, own_width = (max(1, round(side * own / prepared)) for side, own, prepared in sides)
        training = network.training
        network.eval()
        seconds: list[float] = []
        # The same shape, and so timed once, where nothing was resampled.
        for crop_shape in dict.fromkeys((shape, (own_depth, own_height, own_width))):
            placed, passes = dataclasses.replace(geometry, shape=shape, crop_shape=crop_shape), list[float]()
            for _ in range(3):  # kernels are chosen in the first
                begin = time.perf_counter()
                infer_on_own_grid(network, part, placed, inference).cpu()
                passes.append(time.perf_counter() - begin)
            seconds.append(min(passes))
        network.train(training)
        grid_s = max(0.0, seconds[-1] - seconds[0])
        return Rates(network_s=seconds[0] / prod(padded_size(shape, inference)), grid_s=grid_s / prod(shape))

    def content(self, network: nn.Module, score: Dice, step: int) -> dict[str, Any]:
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
            "dice": score.mean,
            "iou": score.iou,
        }


def _within(costs: Sequence[float], most: float) -> tuple[int, ...]:
    """Positions of cases whose costs together are at most this, the same ones at each call; at least the cheapest."""
    chosen, total = [costs.index(min(costs))], min(costs)
    for position in random.Random(0).sample(range(len(costs)), len(costs)):
        if position not in chosen and total + costs[position] <= most:
            chosen.append(position)
            total += costs[position]
    return tuple(sorted(chosen))


def _voxels(how: Inference, shape: Triple) -> int:
    """Voxels of a volume that go through the network, those in several windows as often."""
    size = padded_size(shape, how)
    windows = [len(window_starts(side, window, how.overlap)) for side, window in zip(size, how.window, strict=True)]
    return prod(size) if prod(size) <= how.whole_up_to else prod(windows) * prod(how.window)
