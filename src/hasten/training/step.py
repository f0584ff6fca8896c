"""One optimizer step. Nothing in it reads a device value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hasten.distribute.strategy import Strategy, alone
from hasten.nets.build import Loss
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.observe.ranges import FORWARD, Range
from hasten.runtime.core_follower import follow_cores
from hasten.runtime.precision import autocast, autotuned, memory_format, tensor_cores
from hasten.training.update import Update


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStep:
    """Forward, loss, backward, clip, optimizer, average. `step(image, label, index)` returns the detached loss."""

    network: nn.Module
    """Network in the memory format of `channels_last`; compiled or not."""
    loss: Loss
    update: Update
    """The update, whose `weights` are `network`, or the module inside it if that is compiled or wrapped."""
    precision: str = "fp32"
    channels_last: bool = False
    spatial_dims: int = 3
    device: torch.device
    accumulate: int = 1
    """Pieces that a batch is cut into along its samples. A loss over a whole batch sees one piece at a time."""
    fused_kernels: bool = False
    """Run the forward pass in `gpu_forms`, on a GPU in channels-last; norms are switched by `fused_norms`. Not for a
    compiled network: the compiler chooses its own forms.
    """
    autotune: bool = False
    """Let cuDNN time its algorithms on a GPU for each new shape; otherwise it chooses by its heuristics."""
    strategy: Strategy = field(default_factory=alone)
    """How ranks share the step; a batch is then this rank's share of one."""

    def __call__(self, image: Tensor, label: Tensor, index: int) -> Tensor:
        """image: (B, C, *S) float32; label: (B, 1, *S) uint8; index: 0-based step.

        Returns () float32 on the device: the mean over the pieces, each weighted by its samples.
        """
        follow_cores()
        losses: list[Tensor] = []
        with tensor_cores(self.device, self.precision), autotuned(self.device, self.autotune):
            for image_piece, label_piece, share, last in self._pieces(image, label):
                with self.strategy.sync(self.network, last=last):
                    losses.append(self.strategy.run_piece(self, image_piece, label_piece, share))
            self.update.apply(index)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    @Range(FORWARD)
    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        """() float32 loss of a piece, with its graph. image, label: as `__call__` takes them."""
        with self.autocast(), gpu_forms(self.channels_last and self.fused_kernels):
            output = self.network(self.to_layout(image))
        return self.loss(output, label)

    def to_layout(self, image: Tensor) -> Tensor:
        """`image` (B, C, *S) in the memory format of the weights."""
        return image.contiguous(memory_format=memory_format(self.spatial_dims, self.channels_last))

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of the network's forward pass."""
        return autocast(self.device, self.precision)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one piece's loss ()."""
        self.update.backward(loss)

    def _pieces(self, image: Tensor, label: Tensor) -> Iterator[tuple[Tensor, Tensor, float, bool]]:
        size = image.shape[0]
        pieces = list(zip(image.chunk(self.accumulate), label.chunk(self.accumulate), strict=True))
        for number, (one, other) in enumerate(pieces, start=1):
            yield one, other, one.shape[0] / size, number == len(pieces)
