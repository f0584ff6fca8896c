"""Single layers that a CPU does not compute right, in float32 within a lower precision or without their stride."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from hasten.config.patterns import first_few
from hasten.nets.surgery.dataflow import Probe, see_flow
from hasten.nets.surgery.reclass import ClassSwap, swap_class


class _Fp32(ClassSwap):
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        devices = {value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor)}
        args, kwargs = tree_map(_to_fp32, (args, kwargs))
        with torch.autocast(next(iter(devices), "cpu"), enabled=False):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def _to_fp32(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value


def keep_fp32(network: nn.Module, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Run the modules whose dotted names match one of `patterns` with autocast off and in float32, in place.

    patterns: as of `fnmatch`, such as "model.1.*"; case counts. Their outputs are float32, which the next layer under
    autocast casts down again. Parameters, names and hooks stay; under autocast, parameters are float32 already. Returns
    the names of the modules. Raises ValueError for a pattern that matches none.
    """
    requested = [patterns] if isinstance(patterns, str) else list(patterns)
    names = [name for name, _ in network.named_modules() if name]
    for pattern in requested:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"patterns: {pattern!r} matches no module; there are {first_few(names)}")
    matching = tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in requested))
    for name in matching:
        swap_class(network.get_submodule(name), _Fp32)
    return matching


def tiny_layers(network: nn.Module, probe: Probe) -> tuple[str, ...]:
    """Names of convolutions whose weights' gradient can't be trusted in bf16 on a CPU.

    torch 2.13 with AVX512-BF16 returns uninitialised memory there, or writes past its end, if an image is shorter than
    the filter along an axis on which the filter is longer than one voxel: the input's, or for a transposed convolution
    the output's. Axes shorter than 3 voxels or than the filter are counted; those with a filter of one voxel, as the
    squeezed depth of a flat image has, are not. probe: an input as in training; one copy of the network is run on it.
    """
    flow = see_flow(network, probe)
    layers: dict[str, None] = {}
    for call in flow.calls.values():
        layer = flow.network.get_submodule(call.module)
        if not isinstance(layer, _ConvNd):
            continue
        image = call.output if layer.transposed else call.input
        sides = image.shape[-len(layer.kernel_size) :]
        extents = [(size - 1) * step + 1 for size, step in zip(layer.kernel_size, layer.dilation, strict=True)]
        if any(extent > 1 and side < max(3, extent) for side, extent in zip(sides, extents, strict=True)):
            layers[call.module] = None
    return tuple(layers)


class _Sliced(ClassSwap):
    def _conv_forward(self: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if image.device.type == "cpu":
            rows, columns = self.stride
            return functional.conv2d(image[..., ::rows, ::columns], weight, bias)
        return super()._conv_forward(image, weight, bias)  # type: ignore[misc]


def slice_strided(network: nn.Module) -> tuple[str, ...]:
    """Let strided 1x1 convolutions of 2 to 7 channels take every n-th pixel on a CPU first, in place.

    In channels-last, oneDNN (torch 2.13, without AVX-512) writes past the end of its memory in the gradient of their
    filters, and the process aborts or goes on with wrong values. The convolution of the slice is the same one. Returns
    the names of the layers.
    """
    layers = [name for name, layer in network.named_modules() if _writes_past(layer)]
    for name in layers:
        swap_class(network.get_submodule(name), _Sliced)
    return tuple(layers)


def _writes_past(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != (1, 1) or layer.padding not in ((0, 0), "valid"):
        return False
    plain = type(layer)._conv_forward is nn.Conv2d._conv_forward
    return plain and max(layer.stride) > 1 and 1 < layer.in_channels < 8 and layer.groups == 1
