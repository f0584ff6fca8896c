"""The step of nnU-Net's trainer as one CUDA graph, which reads the batch from its own memory."""

from __future__ import annotations

from torch import Tensor

from hasten.config.decision import Accelerator
from hasten.nnunet.step import LEAST_ITERATIONS, StepSetting
from hasten.training.capture import CapturedStep, why_not
from hasten.training.step import TrainStep


def why_not_captured(step: TrainStep, setting: StepSetting) -> str | None:
    """Why the step is not captured; None if no reason is known beforehand."""
    if setting.several_ranks:
        return "several processes share the step"
    reason = why_not(step)
    if reason is None and setting.loss_asks_host:
        return "the loss asks the host whether a batch has labelled voxels"
    if reason is None and not setting.measured:
        return f"capturing takes a dozen steps, and is tried in trainings of {LEAST_ITERATIONS} iterations or more"
    return reason


class GraphedStep:
    """`graphed(image, target)` trains on a batch, after a few steps as one CUDA graph where that is faster.

    nnU-Net's loop asks a loader for each batch, so it is copied to where the graph reads it. A batch of another shape
    than the first runs without the graph.
    """

    def __init__(self, step: TrainStep, setting: StepSetting) -> None:
        self._step, self._reason = step, why_not_captured(step, setting)
        self._inputs: tuple[Tensor, ...] = ()
        self._static: tuple[Tensor, ...] = ()
        self._captured = None if self._reason else CapturedStep(step=step, load=self._load, batch=self._batch)

    @property
    def accelerator(self) -> Accelerator:
        if self._captured is None:
            return Accelerator(False, "data", str(self._reason))
        return self._captured.accelerator

    def __call__(self, image: Tensor, target: Tensor) -> Tensor:
        """() float32 loss on the device."""
        self._inputs = image, target
        if self._captured is not None and not self._static:
            self._static = image.clone(), target.clone()
        if self._captured is None or any(
            each.shape != other.shape for each, other in zip(self._inputs, self._static, strict=True)
        ):
            return self._step(image, target, 0)
        return self._captured(0)

    def close(self) -> None:
        """Free the graph's memory. Later steps run without it."""
        if self._captured is not None:
            self._captured.close()

    def _load(self, index: int) -> None:
        for static, value in zip(self._static, self._inputs, strict=True):
            static.copy_(value)

    def _batch(self) -> tuple[Tensor, Tensor]:
        image, target = self._static
        return image, target
