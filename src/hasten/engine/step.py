"""One optimizer step. Nothing in it reads a device value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hasten.nets.build import Loss
from hasten.optim.average import update_average

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The autocast context of a precision name; fp32 is autocast switched off."""
    dtype = _DTYPES[precision]
    return torch.autocast(
        device.type, dtype=torch.bfloat16 if dtype is torch.float32 else dtype, enabled=precision != "fp32"
    )


def memory_format(spatial_dims: int, channels_last: bool) -> torch.memory_format:
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last_3d if spatial_dims == 3 else torch.channels_last


def shaped(image: Tensor, spatial_dims: int, layout: torch.memory_format) -> Tensor:
    """(B, C, D, H, W) as the network takes it: D squeezed away in 2-D, in the chosen memory format."""
    return (image if spatial_dims == 3 else image[:, :, 0]).contiguous(memory_format=layout)


@dataclass(kw_only=True, slots=True)
class TrainStep:
    """Forward, loss, backward, clip, optimizer, average. `step(image, label, index)` returns the detached loss."""

    network: nn.Module
    """In the memory format that `channels_last` says; compiled or not."""
    weights: nn.Module
    """The module that holds the parameters (`network` itself, unless that is compiled)."""
    loss: Loss
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    """Learning rate of a 0-based step."""
    average: nn.Module | None
    """Exponential moving average of the weights, updated in place; None keeps none."""
    average_decay: float
    clip_norm: float
    precision: str
    channels_last: bool
    spatial_dims: int
    device: torch.device
    scaler: torch.amp.GradScaler

    def __call__(self, image: Tensor, label: Tensor, index: int) -> Tensor:
        """image: (B, C, D, H, W) float32; label: (B, 1, D, H, W) uint8; index: 0-based step.

        Returns () float32 on the device.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(index)
        image = shaped(image, self.spatial_dims, memory_format(self.spatial_dims, self.channels_last))
        label = label if self.spatial_dims == 3 else label[:, :, 0]
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.device, self.precision):
            output = self.network(image)
        loss = self.loss(output, label)
        self.scaler.scale(loss).backward()
        if self.clip_norm > 0:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.weights.parameters(), self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            update_average(self.average, self.weights, step=index, decay=self.average_decay)
        return loss.detach()
