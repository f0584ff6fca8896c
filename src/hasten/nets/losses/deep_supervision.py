"""One loss on the outputs of several depths of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class DeepSupervisionLoss(nn.Module):
    """The weighted sum of a loss over the heads of a network, the finest first; a network without heads has one.

    loss: (scores (B, K, ...), target) -> () loss. The weights are nnU-Net's: 1, 1/2, 1/4, ... divided by their sum.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, input: Tensor | Sequence[Tensor], target: Tensor) -> Tensor:
        """() loss.

        input: (B, K, ...); heads of one size stacked (B, heads, K, ...), as MONAI's DynUNet gives in training; or a
        sequence of (B, K, ...), of any sizes. target: (B, 1, ...) or (B, K, ...), resampled to the nearest voxel for a
        head of another size.
        """
        heads: Sequence[Tensor] = (input,) if isinstance(input, Tensor) else input
        if isinstance(input, Tensor) and input.ndim == target.ndim + 1:
            heads = input.unbind(1)
        if len(heads) == 1:
            return self.loss(heads[0], target)
        whole = 2 ** len(heads) - 1
        losses = [
            2 ** (len(heads) - 1 - level) / whole * self.loss(head, nearest(target, head.shape[2:]))
            for level, head in enumerate(heads)
        ]
        return sum(losses[1:], start=losses[0])


def nearest(target: Tensor, size: Sequence[int]) -> Tensor:
    """The target (B, C, ...) at the voxel nearest to each of a grid of `size`: torch's mode "nearest-exact"."""
    sides = list(zip(target.shape[2:], size, strict=True))
    if all(side % length == 0 for side, length in sides):  # a view; a float copy of large patches takes 20 ms on a CPU
        places = [slice(side // length // 2, None, side // length) for side, length in sides]
        return target[(slice(None), slice(None), *places)]
    # A class index is exact in float32; no integer but uint8 can be interpolated.
    return F.interpolate(target.float(), size=list(size), mode="nearest-exact").to(target.dtype)
