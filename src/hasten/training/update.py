"""The part of a step after the loss: backward, clip, update, average. Nothing in it reads a device value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hasten.distribute.strategy import Strategy, alone
from hasten.observe.ranges import BACKWARD, OPTIMIZER, Range
from hasten.optim.average import NetworkTensors, average_share, update_average
from hasten.optim.schedule import set_rate


@dataclass(kw_only=True, slots=True)
class Update:
    """`backward(loss)` as often as a batch has pieces, then `apply(index)`, which also counts what was left out.

    An update whose gradient is not finite is left out: weights and moments stay as they are. With an optimizer that
    knows torch's protocol for it (its `_step_supports_amp_scaling`; torch's fused ones and all of Hasten's) no value is
    read on a GPU. With another one the gradients become 0 on a GPU, and on a CPU its step is not taken.
    """

    weights: nn.Module
    """The module that holds the parameters, not compiled."""
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float] | None = None
    """Learning rate of a 0-based step; None leaves the optimizer's own (a scheduler's, say)."""
    average: nn.Module | None = None
    """Exponential moving average of the weights, updated in place; None keeps none."""
    average_decay: float = 0.995
    clip_norm: float = 0.0
    """The gradient's norm is clipped to this; 0 does not clip."""
    scaler: torch.amp.GradScaler | None = None
    """Loss scaling for fp16."""
    share: Tensor | None = None
    """() how far the average moves, where that must not be a number of the host (a captured step); else its decay."""
    strategy: Strategy = field(default_factory=alone)
    """How ranks share the network."""
    skipped: Tensor = field(init=False)
    """() int64 on the device: number of skipped updates."""
    _tensors: NetworkTensors = field(init=False)
    _average_tensors: NetworkTensors | None = field(init=False)

    def __post_init__(self) -> None:
        self._tensors = NetworkTensors.of(self.weights)
        self._average_tensors = None if self.average is None else NetworkTensors.of(self.average)
        self.skipped = torch.zeros((), dtype=torch.int64, device=self._tensors.parameters[0].device)

    @Range(BACKWARD)
    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one piece; the loss is of any float type, () and of the piece's share."""
        (self.scaler.scale(loss) if self.scaler is not None else loss).backward()

    @Range(OPTIMIZER)
    def apply(self, index: int) -> None:
        """Clip, update and average after the last piece of 0-based step `index`, and drop the gradients."""
        if self.schedule is not None:
            set_rate(self.optimizer, self.schedule(index))
        scaler = self.scaler if self.scaler is not None and self.scaler.is_enabled() else None
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        non_finite = self._clip()
        if scaler is not None:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self._step(non_finite)
        self.skipped += non_finite.to(torch.int64)
        # None, not 0: the next backward then writes the gradients instead of adding to them.
        self.optimizer.zero_grad(set_to_none=True)
        if self._average_tensors is not None:
            share = self.share if self.share is not None else average_share(index, self.average_decay)
            update_average(self._average_tensors, self._tensors, share)

    def _clip(self) -> Tensor:
        """() float32, 1 where the gradient is not finite."""
        gradients = [weight.grad for weight in self._tensors.parameters if weight.grad is not None]
        norm = self.strategy.total_norm(gradients)
        if self.clip_norm > 0:
            nn.utils.clip_grads_with_norm_(self._tensors.parameters, self.clip_norm, norm)
        return norm.isfinite().logical_not().to(torch.float32)

    def _step(self, non_finite: Tensor) -> None:
        optimizer = self.optimizer
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.grad_scale, optimizer.found_inf = None, non_finite  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        elif non_finite.device.type == "cpu":
            if not non_finite:
                optimizer.step()
        else:
            for weight in self._tensors.parameters:
                if weight.grad is not None:
                    weight.grad.copy_(torch.where(non_finite > 0, 0.0, weight.grad))
            optimizer.step()
