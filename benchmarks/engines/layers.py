"""Layers of the networks that the ladder trains, forward and backward: torch's operations against Hasten's.

Norm, dropout and activation of one layer; convolutions of few channels, and a UNet that ends with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.harness import interleave

NORMS = {
    "instance norm, PReLU, 2x16x20x28x20": ("instance", 0.0, (2, 16, 20, 28, 20)),
    "instance norm, PReLU, 2x3x40x56x40": ("instance", 0.0, (2, 3, 40, 56, 40)),
    "batch norm, PReLU, 8x16x16x40x40": ("batch", 0.0, (8, 16, 16, 40, 40)),
    "batch norm, dropout, PReLU, 8x16x16x40x40": ("batch", 0.2, (8, 16, 16, 40, 40)),
    "batch norm, dropout, PReLU, 8x2x32x80x80": ("batch", 0.2, (8, 2, 32, 80, 80)),
}
"""The largest of each. (norm, dropout, image)."""
FORMATS = ("contiguous", "channels-last")
FEW = {
    "3 to 3 channels, 2x3x40x56x40": (3, 3, False, (2, 3, 40, 56, 40)),
    "32 to 3 channels, transposed, 2x32x20x28x20": (32, 3, True, (2, 32, 20, 28, 20)),
    "2 to 2 channels, 8x2x32x80x80": (2, 2, False, (8, 2, 32, 80, 80)),
    "32 to 2 channels, transposed, 8x32x16x40x40": (32, 2, True, (8, 32, 16, 40, 40)),
}
"""The last layers of the networks. (inputs, outputs, transposed, image)."""
NETWORK = "UNet 16-32-64-128, 3 classes, 2x1x40x56x40"
ARMS = ("torch, contiguous", "torch, channels-last", "hasten")
Arms = Mapping[str, Callable[[], None]]


def norm_times(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each layer, memory format and arm, interleaved."""
    times: dict[str, list[float]] = {}
    for layer, (norm, dropout, shape) in NORMS.items():
        calls = {
            f"{layer}/{layout}/{arm}": _norm(norm, dropout, shape, layout, ours=arm == "hasten")
            for layout in FORMATS
            for arm in ("torch", "hasten")
        }
        times |= _timed(calls, rounds)
    return times


def few_channel_times(rounds: int, precisions: list[str]) -> dict[str, list[float]]:
    """Milliseconds of each layer, precision and arm, interleaved; of the network also without a backward pass."""
    times: dict[str, list[float]] = {}
    for precision in precisions:
        for name, layer in FEW.items():
            times |= _timed({f"{name}/{precision}/{arm}": _few(*layer, arm, precision) for arm in ARMS}, rounds)
        for name, backward in ((NETWORK, True), (f"{NETWORK}, forward", False)):
            arms = {f"{name}/{precision}/{arm}": _network(arm, precision, backward=backward) for arm in ARMS}
            times |= _timed(arms, rounds)
    return times


def _timed(arms: Arms, rounds: int) -> dict[str, list[float]]:
    from hasten.runtime.allocator import keep_freed_memory

    keep_freed_memory()  # as in a run
    return {name: [1e3 * each for each in values] for name, values in interleave(arms, rounds, 3).items()}


def _norm(norm: str, dropout: float, shape: tuple[int, ...], layout: str, *, ours: bool) -> Callable[[], None]:
    import torch
    from torch import nn

    from hasten.nets.surgery.operate import operate

    torch.manual_seed(0)
    kind = nn.InstanceNorm3d if norm == "instance" else nn.BatchNorm3d
    block = nn.Sequential(kind(shape[1]), *([nn.Dropout(dropout)] if dropout else []), nn.PReLU())
    if ours:
        done = operate(block, torch.randn(2, shape[1], 4, 4, 4))
        assert done.fused == 1, done
    return _call(block, torch.randn(shape).requires_grad_(), layout, "fp32")


def _few(
    inputs: int, outputs: int, transposed: bool, shape: tuple[int, ...], arm: str, precision: str
) -> Callable[[], None]:
    import torch
    from torch import nn

    from hasten.nets.surgery.few_cpu import few_channel_layers

    torch.manual_seed(0)
    more: dict[str, Any] = {"stride": 2, "output_padding": 1} if transposed else {}
    layer = (nn.ConvTranspose3d if transposed else nn.Conv3d)(inputs, outputs, 3, padding=1, bias=False, **more)
    if arm == "hasten":
        assert few_channel_layers(layer) == ("",)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return _call(layer, torch.randn(shape).to(dtype).requires_grad_(), arm, precision)


def _network(arm: str, precision: str, *, backward: bool) -> Callable[[], None]:
    import torch

    from benchmarks.tasks import network
    from hasten.nets.surgery.few_cpu import undo_few_channels
    from hasten.nets.surgery.operate import operate

    torch.manual_seed(0)
    unet = network(3)
    assert len(operate(unet).few_channels) == 2
    if arm != "hasten":  # norms are Hasten's in all arms
        for module in unet.modules():
            undo_few_channels(module)
    return _call(unet, torch.randn(2, 1, 40, 56, 40), arm, precision, backward=backward)


def _call(module: Any, image: Any, layout: str, precision: str, *, backward: bool = True) -> Callable[[], None]:
    """layout: contiguous where it ends so, else channels-last."""
    import torch

    form = torch.contiguous_format if layout.endswith("contiguous") else torch.channels_last_3d
    module.to(memory_format=form)
    image = image.detach().contiguous(memory_format=form).requires_grad_(image.requires_grad)
    return partial(_pass, module, image, precision, backward=backward)


def _pass(module: Any, image: Any, precision: str, *, backward: bool) -> None:
    import torch

    module.zero_grad()
    image.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), torch.set_grad_enabled(backward):
        output = module(image)
    if backward:
        output.backward(torch.ones_like(output))
