"""Hasten's kernels by themselves, as CUDA graphs: milliseconds, and GB/s of the bytes that have to be moved at least.

Norms are instance norms with weights and a leaky ReLU, bf16: `torch` is its own two, `triton` Hasten's kernels.
Forward must read the image and write the output; backward must read image and gradient and write a gradient: 2 and 5
times the image's bytes. Losses are Dice plus
cross-entropy of bf16 scores under autocast, forward and backward: scores read twice and their gradient written once,
the label read twice. Batch norms have a dropout of 0.2 and a PReLU, as in the spleen's UNet. Joins are concatenations
of two maps of 32 channels, forward and backward, with gradients that a convolution can take. Convolutions are in bf16,
forward and backward: the first of a network, 1 channel to 32, its head, 32 to 3 in 1x1x1, one of 32 to 3 in 3x3x3, and
a thin one, 2 to 2. Maps are in channels-last. On a CPU, `triton` is what Hasten runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from monai.losses import DiceCELoss as MonaiDiceCE
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.timing import replayed, turns
from benchmarks.harness import Claim, median_ratio
from hasten.kernels.use import kernels_take, triton_as
from hasten.nets.losses import DiceCELoss
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.nets.surgery.normact import batch_norm_act, group_norm_act

SHAPES = ((2, 32, 128), (2, 64, 64), (2, 128, 32), (2, 320, 8))
"""Batch, channels and the side of the cube."""
QUICK_SHAPES = ((1, 4, 8),)
CLASSES = (2, 14)
LAYERS = {"first": ((1, 32), 3), "head": ((32, 3), 1), "last": ((32, 3), 3), "thin": ((2, 2), 3)}
"""Convolutions of few channels by name: channels, and the side of the filter."""
SLOPE = 0.01

Pass = Callable[[], object]


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    sheet.tell("triton works", kernels_take(torch.zeros(1, device=sheet.device)))
    shapes = QUICK_SHAPES if sheet.quick else SHAPES
    for shape in shapes:
        sheet.attempt(f"norm {named(shape)}", 3, partial(norm, sheet, shape))
    shape = (2, 4, 8) if sheet.quick else (16, 16, 48)
    sheet.attempt(f"batch norm {named(shape)}", 3, partial(batch_norm, sheet, shape))
    side = 8 if sheet.quick else 128
    for classes in CLASSES:
        sheet.attempt(f"loss of {classes} classes", 3, partial(loss, sheet, classes, side))
    batch = 1 if sheet.quick else 7
    sheet.attempt("join", 3, partial(join, sheet, batch, side))
    for layer, (channels, kernel) in LAYERS.items():
        sheet.attempt(f"{layer} convolution", 3, partial(convolution, sheet, layer, channels, kernel, batch, side))


def named(shape: tuple[int, int, int]) -> str:
    batch, channels, side = shape
    return f"{batch}x{channels}x{side}^3 channels-last"


def norm(sheet: Sheet, shape: tuple[int, int, int]) -> None:
    batch, channels, side = shape
    image, upstream = (random_map(sheet.device, batch, channels, side) for _ in range(2))
    weight, bias = (torch.randn(channels, device=sheet.device) for _ in range(2))
    leaves = [each.requires_grad_() for each in (image, weight, bias)]
    arms = {"torch": torchs, "triton": ours}
    size = image.numel() * image.element_size()
    backward = {name: partial(both, partial(call, *leaves), leaves, upstream) for name, call in arms.items()}
    forward = {name: partial(call, *leaves) for name, call in arms.items()}
    timed(sheet, f"norm forward {named(shape)}", forward, 2 * size)
    times = timed(sheet, f"norm forward+backward {named(shape)}", backward, 5 * size)
    ratio = median_ratio(times["torch"], times["triton"])
    title = f"norm and activation, {named(shape)}: torch takes this many times as long"
    sheet.claim(Claim.at_least(title, ratio, 1.5))


def torchs(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result = functional.instance_norm(image, weight=weight.to(image.dtype), bias=bias.to(image.dtype))
    return functional.leaky_relu(result, SLOPE)


def ours(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return group_norm_act(image, image.shape[1], weight, bias, SLOPE)


def batch_norm(sheet: Sheet, shape: tuple[int, int, int]) -> None:
    batch, channels, side = shape
    image, upstream = (random_map(sheet.device, batch, channels, side) for _ in range(2))
    weight, bias, slope = (torch.full((size,), 0.25, device=sheet.device) for size in (channels, channels, 1))
    leaves = [each.requires_grad_() for each in (image, weight, bias, slope)]

    def torchs(image: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
        normed = functional.batch_norm(image, None, None, weight, bias, True)
        return functional.prelu(functional.dropout(normed, 0.2), slope.to(image.dtype))

    def ours(image: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
        return batch_norm_act(image, weight, bias, slope, 1e-5, 0.2, None)[0]

    arms = {
        name: partial(both, partial(call, *leaves), leaves, upstream)
        for name, call in {"torch": torchs, "triton": ours}.items()
    }
    size = 5 * image.numel() * image.element_size()
    times = timed(sheet, f"batch norm, dropout, PReLU forward+backward {named(shape)}", arms, size)
    ratio = median_ratio(times["torch"], times["triton"])
    sheet.claim(Claim.at_least("batch norm, dropout and PReLU: torch takes this many times as long", ratio, 2))


def both(call: Callable[[], Tensor], leaves: list[Tensor], upstream: Tensor | None = None) -> None:
    result = call()
    torch.autograd.grad(result, leaves, None if upstream is None else upstream.to(result.dtype))


def loss(sheet: Sheet, classes: int, side: int) -> None:
    scores = torch.randn(2, classes, side, side, side, device=sheet.device, dtype=torch.bfloat16).requires_grad_()
    label = torch.randint(0, classes, (2, 1, side, side, side), device=sheet.device)
    options: dict[str, Any] = {"to_onehot_y": True, "softmax": True, "batch": True}
    ours = DiceCELoss(**options)
    losses: dict[str, nn.Module] = {"monai": MonaiDiceCE(**options), "eager": ours, "triton": ours}

    def value(function: nn.Module, kernels: bool) -> Tensor:
        with torch.autocast(sheet.device.type, torch.bfloat16), triton_as(kernels):
            result: Tensor = function(scores, label)
        return result

    arms = {
        name: partial(both, partial(value, function, name == "triton"), [scores]) for name, function in losses.items()
    }
    size = 3 * scores.numel() * scores.element_size() + 2 * label.numel() * label.element_size()
    times = timed(sheet, f"dice_ce forward+backward 2x{classes}x{side}^3", arms, size)
    ratio = median_ratio(times["monai"], times["triton"])
    sheet.claim(Claim.at_least(f"Dice and cross-entropy, {classes} classes: MONAI takes so many times", ratio, 3))


def join(sheet: Sheet, batch: int, side: int) -> None:
    one, other, upstream = (
        random_map(sheet.device, batch, channels, side).requires_grad_(channels < 64) for channels in (32, 32, 64)
    )

    def call(on: bool) -> None:
        with gpu_forms(on):
            result = torch.cat([one, other], 1)
        for gradient in torch.autograd.grad(result, [one, other], upstream):
            gradient.contiguous(memory_format=torch.channels_last_3d)  # as the convolution before it needs it

    size = 4 * upstream.numel() * upstream.element_size()
    timed(sheet, f"join {batch}x(32+32)x{side}^3", {"torch": partial(call, False), "triton": partial(call, True)}, size)


def convolution(sheet: Sheet, name: str, channels: tuple[int, int], kernel: int, batch: int, side: int) -> None:
    image, upstream = (random_map(sheet.device, batch, each, side) for each in channels)
    layer = nn.Conv3d(*channels, kernel, padding=kernel // 2, bias=False, device=sheet.device)
    layer.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    # An image needs no gradient.
    leaves = [layer.weight, *([image.requires_grad_()] if channels[0] > 1 else [])]

    def call(on: bool) -> None:
        with torch.autocast(sheet.device.type, torch.bfloat16), gpu_forms(on):
            result = layer(image)
        torch.autograd.grad(result, leaves, upstream)

    size = 2 * (upstream.numel() + image.numel() * (channels[0] > 1)) * upstream.element_size()
    arms = {"torch": partial(call, False), "hasten": partial(call, True)}
    timed(sheet, f"{name} convolution {batch}x{channels[0]}x{side}^3 to {channels[1]}", arms, size)


def random_map(device: torch.device, batch: int, channels: int, side: int) -> Tensor:
    """(B, C, S, S, S) bf16 in channels-last."""
    made = torch.randn(batch, channels, side, side, side, device=device, dtype=torch.bfloat16)
    return made.contiguous(memory_format=torch.channels_last_3d)


def timed(sheet: Sheet, what: str, arms: dict[str, Pass], size: int) -> dict[str, list[float]]:
    """Milliseconds of every arm as a CUDA graph. size: bytes that have to be moved at least."""
    arms = {name: replayed(call, sheet.device) for name, call in arms.items()}
    times = turns(arms, sheet.device, rounds=1 if sheet.quick else 5, repeats=1 if sheet.quick else 10)
    for name, result in times.items():
        sheet.keep({f"{what}, {name}_ms": result, f"{what}, {name}_gb_s": [size / each / 1e6 for each in result]})
    return times
