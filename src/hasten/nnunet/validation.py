"""The batches of nnU-Net's validation during training, several of them in one pass where that is faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hasten.config.decision import Accelerator
from hasten.nnunet.step import LEAST_ITERATIONS, StepSetting, evaluate
from hasten.runtime.batch_size import release_memory
from hasten.runtime.measure import certainly_faster, compared
from hasten.training.step import TrainStep

PER_PASS = 4
"""Batches that go through the network together, or one by one."""
_SECONDS = 5.0
"""Time limit of comparing the two."""


class Validation:
    """`validation(image, target)` for each batch of an epoch, then `finish()`. Each has a loss and counts of its own.

    The first batches decide whether several go through the network together. counts: of (scores, target).
    """

    def __init__(self, step: TrainStep, setting: StepSetting, counts: Callable[[Tensor, Tensor], Tensor]) -> None:
        reason = _why_not(step, setting)
        self.accelerator = Accelerator(False, "default", reason or "not measured yet")
        self._step, self._counts, self._undecided = step, counts, reason is None
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._results: list[dict[str, Tensor]] = []

    def __call__(self, image: Tensor, target: Tensor) -> dict[str, Tensor]:
        """A dict that holds the batch's `loss` and `counts` after `finish` at the latest."""
        result: dict[str, Tensor] = {}
        several = self.accelerator.on or self._undecided
        # A loader's batch is valid until the next one is requested.
        self._batches.append((image.clone(), target.clone()) if several else (image, target))
        self._results.append(result)
        if len(self._batches) == (PER_PASS if several else 1):
            self.finish()
        return result

    def finish(self) -> None:
        """Run the batches that wait."""
        if self._undecided and len(self._batches) == PER_PASS:
            self.accelerator, self._undecided = self._measured(), False
        values = self._together() if self.accelerator.on and self._batches else None
        if values is None:
            values = self._one_by_one()
        for result, (loss, scores), (_, target) in zip(self._results, values, self._batches, strict=True):
            result.update(loss=loss, counts=self._counts(scores, target))
        self._batches, self._results = [], []

    def _one_by_one(self) -> list[tuple[Tensor, Tensor]]:
        return [value for batch in self._batches for value in evaluate(self._step, [batch])]

    def _together(self) -> list[tuple[Tensor, Tensor]] | None:
        """None where memory is short, as it then is for good."""
        try:
            return evaluate(self._step, self._batches)
        except torch.OutOfMemoryError:
            self.accelerator = Accelerator(False, "measured", f"memory is short for {PER_PASS} batches")
        release_memory()  # only here: the traceback keeps the tensors of the pass alive
        return None

    def _measured(self) -> Accelerator:
        if self._together() is None:
            return self.accelerator
        calls = {"one by one": self._one_by_one, "together": self._together}
        comparison = compared(calls, self._step.device, base="one by one", seconds=_SECONDS)
        times = " and ".join(f"{1e3 * comparison.median(name):.1f} ms {name}" for name in calls)
        faster = certainly_faster(comparison, "together", self._step.device)
        return Accelerator(faster, "measured", f"{PER_PASS} batches take {times}")


def _why_not(step: TrainStep, setting: StepSetting) -> str | None:
    if step.device.type != "cuda":
        return "there is no CUDA device"
    if setting.several_ranks:
        return "several processes share the network"
    if step.network is not step.update.weights:
        return "the network is compiled, and would be for each size"
    if not setting.measured:
        return f"measured in trainings of {LEAST_ITERATIONS} iterations or more"
    return None
