"""Biases that the normalisation after a convolution cancels.

`leave_out` keeps the parameters, so that checkpoints load both ways as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from hasten.nets.surgery.dataflow import Call, Flow
from hasten.nets.surgery.reclass import ClassSwap, base_class, swap_class

_NORMS = (
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A bias that a norm cancels."""

    layer: str
    """Name of the convolution."""
    tracked: tuple[str, ...]
    """Names of the norms after it whose running mean includes the bias: it is subtracted there, too."""


def cancelled_biases(flow: Flow) -> list[Cancelled]:
    """The biases that change nothing in training, and in evaluation only together with a running mean.

    A group norm cancels a bias only if every group is one channel.
    """
    candidates = []
    for name, module in flow.network.named_modules():
        bias = module._parameters.get("bias") if isinstance(module, _ConvNd) else None
        # Whoever else has the bias, or reads it, sees what it is.
        if bias is None or is_unbiased(module) or len(flow.uses_of(bias)) != len(flow.calls_of(name)):
            continue
        norms = _norms_after(name, module, flow)
        tracked = tuple(norm for norm in norms if _running_mean(flow.network.get_submodule(norm)) is not None)
        outputs = {id(call.output) for call in flow.calls_of(name)}
        # The running means of these norms must include no other layer's bias.
        if norms and all(id(call.input) in outputs for norm in tracked for call in flow.calls_of(norm)):
            candidates.append(Cancelled(name, tracked))
    return candidates


def _norms_after(name: str, layer: nn.Module, flow: Flow) -> tuple[str, ...]:
    """The norms that are the only consumers of the layer's outputs, if each of them cancels its bias."""
    norms: dict[str, None] = {}
    for call in flow.calls_of(name):
        consumers = flow.consumers(call.output) if isinstance(call.output, Tensor) else None
        if not consumers or not all(_cancels(flow.network, layer, consumer) for consumer in consumers):
            return ()
        norms.update(dict.fromkeys(consumer.module for consumer in consumers))
    return tuple(norms)


def _cancels(network: nn.Module, layer: nn.Module, call: Call) -> bool:
    norm = network.get_submodule(call.module)
    assert isinstance(layer, _ConvNd)
    if call.input.ndim != len(layer.kernel_size) + 2:
        return False
    if base_class(norm) is nn.GroupNorm:
        return norm.num_groups == norm.num_channels
    return base_class(norm) in _NORMS


def _running_mean(norm: nn.Module) -> Tensor | None:
    value = getattr(norm, "running_mean", None)
    return value if isinstance(value, Tensor) else None


class _Unbiased(ClassSwap):
    def _conv_forward(self: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(image, weight, None)  # type: ignore[misc]


class _UnbiasedTransposed(ClassSwap):
    def forward(self: Any, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        dims = len(self.kernel_size)
        padding = self._output_padding(
            image, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        convolve = getattr(functional, f"conv_transpose{dims}d")
        return convolve(image, self.weight, None, self.stride, self.padding, padding, self.groups, self.dilation)


def to_unbiased(layer: nn.Module) -> bool:
    """Make the layer add no bias, in place. False if its forward is not torch's own, so that this can't be done."""
    forward = type(layer).forward
    if forward in (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward):
        return swap_class(layer, _Unbiased)
    return any(forward is kind.forward for kind in _TRANSPOSED) and swap_class(layer, _UnbiasedTransposed)


def is_unbiased(layer: nn.Module) -> bool:
    return isinstance(layer, _Unbiased | _UnbiasedTransposed)


def leave_out(network: nn.Module, cancelled: Iterable[Cancelled]) -> tuple[str, ...]:
    """Make the layers of `cancelled` add no bias, in place, and return the names of those that can.

    Names and shapes stay: a bias is no longer trained, keeps its value if no running mean holds it, and is 0 if one
    does, which is shifted by it; so is what is loaded from a checkpoint that has another bias there.
    """
    names = []
    for each in cancelled:
        layer = network.get_submodule(each.layer)
        if not to_unbiased(layer):
            continue
        bias = layer._parameters["bias"]
        assert bias is not None
        bias.requires_grad_(False)
        if each.tracked:
            _shift(network, each.tracked, bias)
            bias.data.zero_()
            _shift_loaded_biases(network, each)
        names.append(each.layer)
    return tuple(names)


@torch.no_grad()
def _shift(network: nn.Module, norms: Iterable[str], bias: Tensor) -> None:
    for name in norms:
        mean = _running_mean(network.get_submodule(name))
        assert mean is not None
        mean.sub_(bias.to(mean))


def _shift_loaded_biases(network: nn.Module, each: Cancelled) -> None:
    """Hooks the innermost module that contains layer and norms, so that loading a part of a network works, too."""
    paths = [name.split(".")[:-1] for name in (each.layer, *each.tracked)]
    depth = 0
    while all(len(path) > depth for path in paths) and len({path[depth] for path in paths}) == 1:
        depth += 1
    start = sum(len(part) + 1 for part in paths[0][:depth])
    inner = network.get_submodule(".".join(paths[0][:depth]))
    names = dict[int, list[str]]()
    for name, module in inner.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    layer, *norms = (tuple(names[id(inner.get_submodule(name[start:]))]) for name in (each.layer, *each.tracked))
    inner.register_load_state_dict_pre_hook(_Shift(layer, tuple(norms)))


@dataclass(frozen=True, slots=True)
class _Shift:
    """Names of the layer and of each norm in the module that it is a hook of: a state dict may have several of one."""

    layer: tuple[str, ...]
    tracked: tuple[tuple[str, ...], ...]

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        keys = [key for name in self.layer if isinstance(state.get(key := f"{prefix}{name}.bias"), Tensor)]
        if not keys:
            return
        bias = state[keys[0]]
        for names in self.tracked:
            means = [key for name in names if (key := f"{prefix}{name}.running_mean") in state]
            for mean in means:
                state[mean] = state[mean] - bias.to(state[mean])
            if not means:
                _shift(module, names[:1], bias)
        for key in keys:
            state[key] = torch.zeros_like(bias)
