"""Batch norm over all processes: torch's on a GPU, and one for CPUs, which torch's does not support."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hasten.nets.over_ranks import several_ranks, sum_over_ranks
from hasten.nets.surgery.layout import per_channel
from hasten.nets.surgery.reclass import ClassSwap, swap_class


class _Shared(ClassSwap):
    """A batch norm, or torch's `SyncBatchNorm` for images on a CPU: mean and variance are two sums over processes."""

    def forward(self: Any, image: Tensor) -> Tensor:
        torchs = isinstance(self, nn.SyncBatchNorm) and image.device.type != "cpu"
        if torchs or not (self.training and several_ranks()):
            return super().forward(image)  # type: ignore[misc]
        self._check_input_dim(image)
        exact = image.to(torch.promote_types(image.dtype, torch.float32))
        dims = [0, *range(2, image.ndim)]
        voxels = exact.new_full((1,), image.numel() // image.shape[1])
        first = sum_over_ranks(torch.cat([exact.sum(dims), voxels]))
        mean, count = first[:-1] / first[-1], first[-1].detach()
        centred = exact - per_channel(mean, image)
        var = sum_over_ranks(centred.square().sum(dims)) / count
        if self.track_running_stats:
            self.num_batches_tracked.add_(1)
            factor = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean.detach().to(self.running_mean), factor)
            self.running_var.lerp_((var.detach() * (count / (count - 1))).to(self.running_var), factor)
        normed = centred * per_channel((var + self.eps).rsqrt(), image)
        if self.weight is not None:
            normed = normed * per_channel(self.weight, image)
        if self.bias is not None:
            normed = normed + per_channel(self.bias, image)
        return normed.to(image.dtype)


def sync_batch_norm(network: nn.Module) -> nn.Module:
    """Convert every batch norm of `network` to one over all processes; names and parameters stay.

    On processes that speak gloo the layers stay `BatchNorm`s, as DistributedDataParallel refuses torch's
    `SyncBatchNorm` on a CPU; else they are torch's. Before or after `operate`, and before DistributedDataParallel.
    Returns the network (another module only where it is a batch norm itself).
    """
    started = distributed.is_available() and distributed.is_initialized()
    if not (started and distributed.get_backend() == "gloo"):
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            swap_class(module, _Shared)
    return network
