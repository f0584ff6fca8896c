"""Experiments on one ready batch (its size, pieces, threads, augmentation), and the work between the steps."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from hasten.augment.chain import stages_of
from hasten.augment.program import Segment
from hasten.doctor.training import (
    RunComponents,
    TrainStep,
    compared,
    out_of_memory,
    save_checkpoint,
    synchronize,
    validate_some,
)
from hasten.feed.feed import Feed
from hasten.nets.build import divisor
from hasten.optim.schedule import multiples_before

Batch = tuple[Tensor, Tensor]
_HOPELESS = 20.0
"""An arm that is this many times slower than the fastest one isn't timed again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arms:
    """Median seconds by arm, interleaved; arms that ran out of memory or don't apply are missing."""

    seconds: dict[str, float] = field(default_factory=dict)
    """`fixed`: the step as it is; `doubled`: on twice the samples; `whole`: in one piece; `eager`: not compiled;
    `threads`: with as many threads as there are cores; `small`: forward and backward of one small patch."""
    small_share: float = 1.0
    """Voxels of the small patch over those of the batch."""

    @property
    def doubled(self) -> float | None:
        fixed, doubled = self.seconds.get("fixed"), self.seconds.get("doubled")
        return doubled / fixed if fixed and doubled else None

    def launches(self, forward_backward: float) -> float:
        """Seconds of forward and backward that do not grow with the voxels, by a line through two sizes; 0 if unknown.

        A small patch of more than half the voxels gives no estimate.
        """
        small = self.seconds.get("small")
        if small is None or self.small_share > 0.5:
            return 0.0
        fixed = (small - self.small_share * forward_backward) / (1 - self.small_share)
        return min(max(0.0, fixed), forward_backward)


def first_batch(components: RunComponents, first: int = 0) -> Batch:
    """A copy of a batch, which no later batch overwrites. first: its 0-based step."""
    with closing(iter(Feed(components.program, first=first, last=first + 1))) as batches:
        batch = next(batches)
        return batch["image"].clone(), batch["label"].clone()


def run_arms(components: RunComponents, batch: Batch, *, cores: int, seconds: float) -> Arms:
    """Time the arms that apply to this run, interleaved. cores: those that torch could use on a CPU."""
    step, (image, label) = components.step, batch
    arms: dict[str, Callable[[], object]] = {"fixed": lambda: step(image, label, 0)}
    compiled = step.network is not step.update.weights
    if not compiled:  # another shape would be compiled anew
        twice = (torch.cat([image, image]), torch.cat([label, label]))
        arms["doubled"] = lambda: step(*twice, 0)
    else:
        eager = dataclasses.replace(step, network=step.update.weights)
        arms["eager"] = lambda: eager(image, label, 0)
    if step.accumulate > 1:
        whole = dataclasses.replace(step, accumulate=1)
        arms["whole"] = lambda: whole(image, label, 0)
    if step.device.type == "cpu" and torch.get_num_threads() < cores:
        arms["threads"] = _threads(cores)(lambda: step(image, label, 0))
    small = _small(components, image)
    if small is not None and not compiled:
        arms["small"] = lambda: _forward_backward(step, *small)
    arm_seconds = _in_turns(arms, seconds, step.device)
    share = small[0][:, :1].numel() / image[:, :1].numel() if small is not None else 1.0
    return Arms(seconds=arm_seconds, small_share=share)


def _in_turns(arms: Mapping[str, Callable[[], object]], seconds: float, device: torch.device) -> dict[str, float]:
    """Median seconds by arm, without those that ran out of memory."""

    def guarded(name: str, call: Callable[[], object]) -> object:
        try:
            return call()
        except RuntimeError as error:
            if name == "fixed" or not out_of_memory(error):
                raise
            return math.inf

    calls = {name: partial(guarded, name, call) for name, call in arms.items()}
    comparison = compared(calls, device, base="fixed", seconds=seconds, hopeless=_HOPELESS)
    medians = {name: comparison.median(name) for name in arms}
    return {name: value for name, value in medians.items() if math.isfinite(value)}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Inside the block torch computes on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _small(components: RunComponents, image: Tensor) -> Batch | None:
    """One patch of a few voxels at the coarsest level; not fewer than 3, below which a CPU's bf16 is unsound."""
    unit = divisor(components.planned.config.network)[3 - (image.ndim - 2) :]  # a 2-D batch has no depth
    sides = [min(side, 3 * by) for side, by in zip(image.shape[2:], unit, strict=True)]
    if math.prod(sides) * 2 > math.prod(image.shape[2:]) * image.shape[0]:
        return None
    patch = image[(slice(1), slice(None), *map(slice, sides))].contiguous()
    return patch, torch.zeros_like(patch[:, :1], dtype=torch.uint8)


def _forward_backward(step: TrainStep, image: Tensor, label: Tensor) -> None:
    step.forward(image, label).backward()
    step.update.weights.zero_grad(set_to_none=True)


# Augmentation, operation by operation


def operation_costs(components: RunComponents, *, seconds: float) -> dict[str, float]:
    """Seconds of a batch by the operation that would save them, and "batch": the whole. Empty of compiled programs.

    Operations of one class count as one.
    """
    segment = components.program.latest
    if segment.compiled:
        return {}
    names = dict.fromkeys(type(op).__name__ for op in segment.chain.ops if getattr(op, "prob", 0.0) > 0)
    arms = {"batch": segment} | {name: _without(segment, name) for name in names}
    times: dict[str, list[float]] = {name: [] for name in arms}
    start_s = time.perf_counter()
    for number in range(13):
        for name, each in arms.items():
            draws = next(each.draws(number, number + 1))
            start = time.perf_counter()
            each.rendered(draws)
            synchronize(segment.device)
            if number:
                times[name].append(time.perf_counter() - start)
        if number >= 2 and time.perf_counter() - start_s > seconds:
            break
    # Means: with probabilities below 1, some batches hold more of an operation than others, the same for all arms.
    mean = {name: statistics.fmean(samples) for name, samples in times.items()}
    return {"batch": mean["batch"]} | {
        name: max(0.0, mean["batch"] - value) for name, value in mean.items() if name != "batch"
    }


def _without(segment: Segment, name: str) -> Segment:
    ops = tuple(dataclasses.replace(op, prob=0.0) if type(op).__name__ == name else op for op in segment.chain.ops)
    chain = dataclasses.replace(segment.chain, ops=ops)
    return dataclasses.replace(segment, chain=chain, stages=stages_of(chain, segment.warp.size))


# Work between steps


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodicCosts:
    """Seconds of one validation and one checkpoint, and how often the run has them."""

    validation_s: float
    """Time of all validation cases."""
    timed_cases: int
    """Cases on which that was measured."""
    validations: int
    checkpoint_s: float
    """Time for which one stops the training."""
    write_s: float
    """Time until one is on disk, in parallel with the training."""
    checkpoints: int
    steps: int
    """Steps of the run."""

    @property
    def validation_step_s(self) -> float:
        """Spread over the steps."""
        return self.validation_s * self.validations / self.steps

    @property
    def checkpoint_step_s(self) -> float:
        return self.checkpoint_s * self.checkpoints / self.steps


def measure_periodic(
    components: RunComponents, folder: Path, *, cases: int, step_s: float, seconds: float
) -> PeriodicCosts:
    """Time a validation of a few cases and a checkpoint in `folder`. cases: validation cases of the run."""
    train = components.planned.config.train
    validated_s, timed = _validation(components, seconds)
    stands, writes = save_checkpoint(components, folder)
    # The next save waits for the one before it.
    stands += max(0.0, writes - train.checkpoint_every * step_s)
    before_first = multiples_before(train.validate_from, train.steps, train.validate_every)
    return PeriodicCosts(
        validation_s=validated_s * cases / len(components.planned.validation),
        timed_cases=timed,
        # At regular intervals from the first on, and at the end.
        validations=-(-train.steps // train.validate_every) - before_first,
        checkpoint_s=stands,
        write_s=writes,
        checkpoints=-(-train.steps // train.checkpoint_every),
        steps=train.steps,
    )


def _validation(components: RunComponents, seconds: float) -> tuple[float, int]:
    """Seconds for all cases of `components`, by their voxels, and how many were timed."""
    cases = components.planned.validation
    voxels = [components.arena.label(case).numel() for case in components.arena.index(tuple(case.id for case in cases))]
    count = 1
    elapsed = validate_some(components, 1)  # warm-up: allocations and lookups of the first call don't count
    if elapsed < seconds:
        count = max(1, min(len(cases), 8, int((seconds - elapsed) / max(elapsed, 1e-6))))
        elapsed = validate_some(components, count)
    return elapsed * sum(voxels) / sum(voxels[:count]), count


def device_busy(step: Callable[[], object], device: torch.device, *, steps: int = 3) -> float | None:
    """Seconds of a step in which the GPU has a kernel to run, by torch's profiler; None on a CPU or where it fails."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(steps):
                step()
            synchronize(device)
        total = sum(float(event.self_device_time_total) for event in recorded.key_averages())
    except (RuntimeError, AttributeError):
        return None
    return total / 1e6 / steps if total > 0 else None
