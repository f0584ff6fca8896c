"""Scores from any form of network output, and test-time augmentation by mirroring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

_FEW = 4096
"""Voxels below which the calls of a comparison by class take longer than the comparison."""

Average = Literal["scores", "softmax"]
"""What is averaged over mirror images and windows: the network's scores, as nnU-Net does, or their softmax."""
ScoreFunction = Callable[[Tensor], Tensor]
"""(B, C, D, H, W) to (B, K, D, H, W)."""


def first_output(output: Any, dims: int) -> Tensor:
    """The full-size output of a network with one output or several.

    output: (B, K, ...) scores with `dims` axes in all; a list, tuple or mapping that begins with them; or (B, heads,
    K, ...), the stacked heads of deep supervision. Raises ValueError for anything else.
    """
    result = output
    while isinstance(result, list | tuple | Mapping) and len(result):
        result = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
    if not isinstance(result, Tensor):
        raise ValueError(
            f"the network gave a {type(result).__name__}; let it give a tensor of scores, or a list of them"
        )
    if result.ndim == dims + 1:
        result = result[:, 0]
    if result.ndim != dims:
        raise ValueError(
            f"the network gave a tensor of shape {tuple(result.shape)}; scores of a batch of {dims - 2}-D images have "
            f"{dims} axes (batch, class, space)"
        )
    return result


def highest(scores: Tensor) -> Tensor:
    """(d, h, w) index of the highest of (K, d, h, w), the first one where several are highest: uint8, int16 if K > 256.

    On a CPU class by class with NumPy, a sixth of the time of torch's max and a twentieth of argmax.
    """
    dtype = torch.uint8 if len(scores) <= 256 else torch.int16
    by_class = scores.dtype == torch.float32 and scores.stride(0) > 1 and scores[0].numel() >= _FEW
    if scores.device.type != "cpu" or dtype != torch.uint8 or not by_class:
        return scores.max(0)[1].to(dtype)
    values = scores.numpy()
    best, index = values[0].copy(), np.zeros(values.shape[1:], np.uint8)
    higher = np.empty(values.shape[1:], bool)
    number = higher.view(np.uint8)
    for label in range(1, len(values)):
        np.greater(values[label], best, out=higher)
        np.maximum(values[label], best, out=best)
        np.multiply(number, np.uint8(label), out=number)
        np.maximum(index, number, out=index)
    return torch.from_numpy(index)


def averaged(scores: ScoreFunction, flip_axes: Sequence[int], average: Average = "scores") -> ScoreFunction:
    """`scores`, or their softmax, as a mean over all 2^n mirrorings along n of the axes D, H, W (0, 1, 2), in float32.

    Without axes and for plain scores, `scores` itself.
    """
    axes = [2 + axis for axis in flip_axes]
    flips = [chosen for count in range(1, len(axes) + 1) for chosen in combinations(axes, count)]
    if not flips and average == "scores":
        return scores

    def one(image: Tensor) -> Tensor:
        output = scores(image).float()
        return output.softmax(1) if average == "softmax" else output

    def mirrored(image: Tensor) -> Tensor:
        total = one(image)
        for flip in flips:
            # `flip` returns a new tensor, safe to add to in place; the network's output may be its input.
            total = one(image.flip(flip)).flip(flip).add_(total)
        return total.div_(1 + len(flips)) if flips else total

    return mirrored
