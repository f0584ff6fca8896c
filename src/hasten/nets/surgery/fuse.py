"""Norms that keep channels-last, fused with the activation after them if that is their only consumer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hasten.devices import kind_of
from hasten.kernels.use import kernels_take
from hasten.nets.surgery.dataflow import Flow
from hasten.nets.surgery.deferred import FUNCTIONS, Deferred, Finish
from hasten.nets.surgery.layout import Slope, layout_of, on_cpu_only
from hasten.nets.surgery.normact import Statistics, batch_norm_act, cpu_kernel_takes, group_norm_act
from hasten.nets.surgery.reclass import ClassSwap, original, swap_class

_INSTANCE = (nn.InstanceNorm2d, nn.InstanceNorm3d)
_BATCH = (nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (*_INSTANCE, nn.GroupNorm, *_BATCH)
_ACTIVATIONS = (nn.PReLU, nn.ReLU, nn.LeakyReLU)


@dataclass(frozen=True, slots=True)
class Surgery:
    """The changes to a network, by the names of its modules."""

    pairs: tuple[str, ...] = ()
    """Norms that are fused with the activation after them."""
    unbiased: tuple[str, ...] = ()
    """Layers that no longer add their bias, because the norm after them cancels it."""
    norms: tuple[str, ...] = ()
    """Norms that keep the memory format of their input, those of `pairs` included."""
    few_channels: tuple[str, ...] = ()
    """Convolutions to a few channels, which C++ functions compute on a CPU."""

    @property
    def fused(self) -> int:
        return len(self.pairs)

    @property
    def biases(self) -> int:
        return len(self.unbiased)

    def __str__(self) -> str:
        return (
            f"{self.fused} norms are one operation with their activation, {len(self.norms)} keep the memory format, "
            f"{self.biases} layers add no bias, as the norm behind them would take it away again"
            + f", {len(self.few_channels)} convolutions have a C++ function for few channels"
            * bool(self.few_channels)
        )


class _Kept(ClassSwap):
    """A norm that keeps the memory format of its input."""

    hasten_defers: bool = False
    """Whether its output goes to an activation only, so that it is deferred."""
    hasten_kernels: bool = False
    """Whether Triton kernels compute norm and activation on a GPU; see `fused_norms`."""

    def forward(self: Any, image: Tensor) -> Tensor:
        # Measured on an H100, the Triton kernels lose without channels-last.
        kernels = self.hasten_kernels and kernels_take(image) and layout_of(image) is not torch.contiguous_format
        ours = on_cpu_only(image, self.weight, self.bias) or kernels
        if not (ours and _is_image(image) and self._fits(image)):
            output: Tensor = super().forward(image)  # type: ignore[misc]
            traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(output, Deferred)
            return output if traced else output.contiguous(memory_format=layout_of(image))
        finish = self._finisher(image)
        return Deferred(image, finish) if self.hasten_defers else finish(None, 0.0)

    def _fits(self: Any, image: Tensor) -> bool:
        """Whether this class handles the image; if not, torch does, and raises its errors."""
        voxels, channels = image.shape[2:].numel(), image.shape[1]
        if isinstance(self, nn.GroupNorm):
            return channels == self.num_channels and voxels * (channels // self.num_groups) > 1
        dims = 2 if isinstance(self, nn.InstanceNorm2d) else 3
        fits: bool = channels == self.num_features and image.ndim == dims + 2 and voxels > 1
        return fits and not self.track_running_stats

    def _finisher(self, image: Tensor) -> Finish:
        return partial(_finish, self, image)


class _KeptBatch(_Kept):
    """A batch norm: on a CPU as a C++ function, on a GPU as kernels where the image is in channels-last."""

    def _fits(self: Any, image: Tensor) -> bool:
        dims = 2 if isinstance(self, nn.BatchNorm2d) else 3
        fits = image.ndim == dims + 2 and image.shape[1] == self.num_features and image.numel() > image.shape[1]
        return fits and (kind_of(image.device).triton or cpu_kernel_takes(image))

    def _finisher(self: Any, image: Tensor) -> Finish:
        return _FinishBatch(self, image, training=self.training)


def _is_image(image: Tensor) -> bool:
    plain = not isinstance(image, Deferred) and image.is_floating_point()
    return plain and image.ndim in (4, 5) and image.numel() > 0


def _finish(norm: Any, image: Tensor, slope: Slope, dropout: float) -> Tensor:
    groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else image.shape[1]
    return group_norm_act(image, groups, norm.weight, norm.bias, slope, norm.eps, dropout)


@dataclass(slots=True)
class _FinishBatch:
    """A batch norm's output, whose running statistics move once."""

    norm: Any
    image: Tensor
    training: bool
    counted: bool = False

    def __call__(self, slope: Slope, dropout: float) -> Tensor:
        norm = self.norm
        running = None if norm.running_mean is None else Statistics(norm.running_mean, norm.running_var)
        given = None if self.training or running is None else Statistics(running.mean.float(), running.var.float())
        output, batch = batch_norm_act(self.image, norm.weight, norm.bias, slope, norm.eps, dropout, given)
        if self.training and running is not None and not self.counted:
            self.counted = True
            _track(norm, running, batch, self.image.numel() // self.image.shape[1])
        return output


def _track(norm: Any, running: Statistics, batch: Statistics, count: int) -> None:
    """Move the running statistics towards those of a batch of `count` voxels, as torch does."""
    share = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if share is None:
            # As a tensor, which a GPU can read in its own time.
            share = norm.num_batches_tracked.reciprocal().to(running.mean.dtype)
    running.mean.lerp_(batch.mean.to(running.mean.dtype), share)
    running.var.lerp_((batch.var * (count / (count - 1))).to(running.var.dtype), share)


class _Following(ClassSwap):
    """An activation that handles a deferred norm output."""

    def forward(self: Any, image: Tensor) -> Tensor:
        if isinstance(image, Deferred):
            output = image.activated(_slope(self), inplace=getattr(self, "inplace", False))
            if output is not None:
                return output
            image = image.value()
        return super().forward(image)  # type: ignore[misc]


def _slope(activation: nn.Module) -> Slope:
    if isinstance(activation, nn.PReLU):
        return activation.weight
    return float(activation.negative_slope) if isinstance(activation, nn.LeakyReLU) else 0.0


def fuse(network: nn.Module, flow: Flow) -> Surgery:
    """Change the classes of norms and activations of `network`, in place; `flow` is its traced data flow.

    Parameters, buffers, names and hooks stay. On a GPU nothing changes before `fused_norms`.
    """
    norms, pairs = [], []
    for name, module in network.named_modules():
        if isinstance(module, _ACTIVATIONS) and type(module) in _ACTIVATIONS:
            swap_class(module, _Following)
        if type(module) not in _NORMS:
            continue
        calls = flow.calls_of(name)
        swap_class(module, _KeptBatch if isinstance(module, _BATCH) else _Kept)
        norms.append(name)
        module.hasten_defers = bool(calls) and all(_is_activated(call.output, flow) for call in calls)
        if module.hasten_defers:
            pairs.append(name)
    return Surgery(pairs=tuple(pairs), norms=tuple(norms))


def fuse_block(block: nn.Module) -> bool:
    """Fuse MONAI's ADN block of an instance norm and an activation, in place: what `fuse` would find by tracing it.

    False for any other block: with another order, with a dropout, or whose norm has weights or running statistics.
    """
    children = dict(block.named_children())
    dropout = children.pop("D", None)
    if list(children) != ["N", "A"] or (dropout is not None and getattr(dropout, "p", None) != 0):
        return False
    norm, activation = children["N"], children["A"]
    if type(norm) not in _INSTANCE or norm.affine or norm.track_running_stats or type(activation) not in _ACTIVATIONS:
        return False
    swap_class(norm, _Kept)
    norm.hasten_defers = True  # type: ignore[assignment]
    swap_class(activation, _Following)
    return True


def fused_norms(network: nn.Module, on: bool) -> int:
    """Switch the Triton kernels for norm and activation on or off in place, in a network that `operate` changed.

    Off, which is the default, a norm on a GPU is torch's own. Parameters, names and hooks stay, and a copy keeps the
    setting. Returns the number of norms that are switched. Whatever the setting, torch's own operations run
    while the network is compiled or traced, and where the image is on no GPU that Triton supports.
    """
    norms = [module for module in network.modules() if isinstance(module, _Kept)]
    for norm in norms:
        norm.hasten_kernels = on
    return len(norms)


def unfuse(module: nn.Module) -> None:
    """Undo `fuse` on one module."""
    if isinstance(module, _Kept | _Following):
        original(module)
        for name in ("hasten_defers", "hasten_kernels"):
            module.__dict__.pop(name, None)


def _is_activated(output: Any, flow: Flow) -> bool:
    """Whether an activation is the only consumer of a norm's output."""
    if not isinstance(output, Tensor):
        return False
    uses, call = flow.uses_of(output), flow.first_consumer(output)
    if call is not None and type(flow.network.get_submodule(call.module)) is nn.Dropout and call.output is not output:
        return flow.consumers(output) == [call] and _is_activated(call.output, flow)
    if call is None:
        alone = len(uses) == 1 and not uses[0].returned_it and id(output) not in flow.outputs
        return alone and uses[0].function in FUNCTIONS
    if call.output is not output and len(flow.consumers(output) or ()) != 1:
        # If the activation works in place, later consumers use the activation's output.
        return False
    activation = flow.network.get_submodule(call.module)
    supported = type(activation) in _ACTIVATIONS or isinstance(activation, _Following)
    return supported and getattr(activation, "negative_slope", 0.0) >= 0
