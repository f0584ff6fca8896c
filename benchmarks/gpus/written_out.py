"""Norm and activation in plain operations: what the kernels are compared with, and what a compiler can fuse."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.nets.surgery.layout import Slope, per_channel


def written_out(
    image: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, slope: Slope, eps: float
) -> Tensor:
    """prelu(group_norm(image)) in plain operations, each of which keeps the memory format; statistics in float32.

    Arguments as of `hasten.nets.surgery.normact.group_norm_act`, on any device.
    """
    exact = image.to(torch.promote_types(image.dtype, torch.float32)).unflatten(1, (groups, -1))
    dims = list(range(2, exact.ndim))
    var, mean = torch.var_mean(exact, dims, correction=0, keepdim=True)
    normed = ((exact - mean) * torch.rsqrt(var + eps)).flatten(1, 2)
    if weight is not None:
        normed = normed * per_channel(weight, image)
    if bias is not None:
        normed = normed + per_channel(bias, image)
    if isinstance(slope, Tensor):
        normed = torch.where(normed > 0, normed, normed * per_channel(slope.expand(image.shape[1]), image))
    elif slope is not None:
        normed = torch.where(normed > 0, normed, normed * slope)
    return normed.to(image.dtype)
