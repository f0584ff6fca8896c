"""One loss on the outputs of several depths of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

WeightMode = Literal["exp", "same", "two", "nnunet"]


class DeepSupervisionLoss(nn.Module):
    """The weighted sum of a loss over the heads of a network, the finest first; a network without heads has one.

    loss: (scores (B, K, ...), target) -> () loss. weight_mode: MONAI's "exp" (1, 1/2, 1/4, 1/8, 1/16, 1/16, ...),
    "same" (all 1) and "two" (1, 1/2, 1/2, ...); "nnunet" is 1, 1/2, 1/4, ... divided by their sum. weights: one per
    head, or more, in place of those.
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        weight_mode: WeightMode = "exp",
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if weight_mode not in get_args(WeightMode):
            raise ValueError(f"weight_mode: {weight_mode!r}; use one of {', '.join(get_args(WeightMode))}")
        self.loss, self.weight_mode = loss, weight_mode
        self.weights = None if weights is None else tuple(weights)

    def forward(self, input: Tensor | Sequence[Tensor], target: Tensor) -> Tensor:
        """() loss.

        input: (B, K, ...); heads of one size stacked (B, heads, K, ...), as MONAI's DynUNet gives in training; or a
        sequence of (B, K, ...), of any sizes. target: (B, 1, ...) or (B, K, ...), resampled to the nearest voxel for a
        head of another size. ValueError if there are more heads than weights.
        """
        heads = heads_of(input, target)
        if len(heads) == 1 and self.weights is None:
            return self.loss(heads[0], target)
        weights = self.weights or _weights(self.weight_mode, len(heads))
        if len(weights) < len(heads):
            raise ValueError(f"weights: {len(weights)} for {len(heads)} heads; give one for each")
        losses = [
            weight * self.loss(head, nearest(target, head.shape[2:]))
            for head, weight in zip(heads, weights, strict=False)
        ]
        return sum(losses[1:], start=losses[0])


def _weights(mode: WeightMode, heads: int) -> list[float]:
    match mode:
        case "same":
            return [1.0] * heads
        case "two":
            return [1.0, *[0.5] * (heads - 1)]
        case "exp":
            return [max(0.5**level, 0.0625) for level in range(heads)]
        case "nnunet":
            return [2 ** (heads - 1 - level) / (2**heads - 1) for level in range(heads)]


def heads_of(output: Tensor | Sequence[Tensor], target: Tensor) -> Sequence[Tensor]:
    """The outputs (B, K, ...), finest first."""
    if not isinstance(output, Tensor):
        return output
    return output.unbind(1) if output.ndim == target.ndim + 1 else (output,)


def nearest(target: Tensor, size: Sequence[int]) -> Tensor:
    """The target (B, C, ...) at the voxel nearest to each of a grid of `size`: torch's mode "nearest-exact"."""
    sides = target.shape[2:]
    if tuple(sides) == tuple(size):
        return target
    if all(side % length == 0 for side, length in zip(sides, size, strict=True)):
        steps = [side // length for side, length in zip(sides, size, strict=True)]
        for axis, step in enumerate(steps, start=2):
            target = target[(slice(None),) * axis + (slice(step // 2, None, step),)]
        return target
    # A class index is exact in float32; no integer but uint8 can be interpolated.
    return F.interpolate(target.float(), size=list(size), mode="nearest-exact").to(target.dtype)
