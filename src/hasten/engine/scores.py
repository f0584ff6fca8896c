"""What a network says about a batch, whatever form its output has, and its mean over mirror images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from torch import Tensor

Average = Literal["scores", "softmax"]
"""What is averaged over mirror images and windows: the network's scores, as nnU-Net does, or their softmax."""
ScoreFunction = Callable[[Tensor], Tensor]
"""(B, C, D, H, W) to (B, K, D, H, W)."""


def first_output(output: Any, dims: int) -> Tensor:
    """The full-size output of a network with one output or several.

    output: (B, K, ...) scores with `dims` axes in all; a list, tuple or mapping that begins with them; or (B, heads,
    K, ...), the stacked heads of deep supervision. Raises ValueError for anything else.
    """
    found = output
    while isinstance(found, list | tuple | Mapping) and len(found):
        found = next(iter(found.values())) if isinstance(found, Mapping) else found[0]
    if not isinstance(found, Tensor):
        raise ValueError(
            f"the network gave a {type(found).__name__}; let it give a tensor of scores, or a list of them"
        )
    if found.ndim == dims + 1:
        found = found[:, 0]
    if found.ndim != dims:
        raise ValueError(
            f"the network gave a tensor of shape {tuple(found.shape)}; scores of a batch of {dims - 2}-D images have "
            f"{dims} axes (batch, class, space)"
        )
    return found


def averaged(scores: ScoreFunction, flip_axes: Sequence[int], average: Average) -> ScoreFunction:
    """`scores`, or their softmax, as a mean over all 2^n mirrorings along n of the axes D, H, W (0, 1, 2), in float32.

    Without axes and for plain scores, `scores` itself.
    """
    axes = [2 + axis for axis in flip_axes]
    flips = [chosen for count in range(1, len(axes) + 1) for chosen in combinations(axes, count)]
    if not flips and average == "scores":
        return scores

    def one(image: Tensor) -> Tensor:
        found = scores(image).float()
        return found.softmax(1) if average == "softmax" else found

    def mean(image: Tensor) -> Tensor:
        total = one(image)
        for flip in flips:
            # `flip` makes a tensor of our own to add to; the network's output may be its input.
            total = one(image.flip(flip)).flip(flip).add_(total)
        return total.div_(1 + len(flips)) if flips else total

    return mean
