"""Norm, dropout and activation of one layer, forward and backward: torch's operations against Hasten's function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import interleave

LAYERS = {
    "instance norm, PReLU, 2x16x20x28x20": ("instance", 0.0, (2, 16, 20, 28, 20)),
    "instance norm, PReLU, 2x3x40x56x40": ("instance", 0.0, (2, 3, 40, 56, 40)),
    "batch norm, PReLU, 8x16x16x40x40": ("batch", 0.0, (8, 16, 16, 40, 40)),
    "batch norm, dropout, PReLU, 8x16x16x40x40": ("batch", 0.2, (8, 16, 16, 40, 40)),
    "batch norm, dropout, PReLU, 8x2x32x80x80": ("batch", 0.2, (8, 2, 32, 80, 80)),
}
"""Layers of the networks that the ladder trains, the largest of each. (norm, dropout, image)."""
FORMATS = ("contiguous", "channels-last")


def norm_times(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each layer, memory format and arm, interleaved."""
    from hasten.runtime.allocator import keep_freed_memory

    keep_freed_memory()  # as in a run
    times: dict[str, list[float]] = {}
    for layer, (norm, dropout, shape) in LAYERS.items():
        calls = {
            f"{layer}/{layout}/{arm}": _call(norm, dropout, shape, last=layout == "channels-last", ours=arm == "hasten")
            for layout in FORMATS
            for arm in ("torch", "hasten")
        }
        times |= {name: [1e3 * each for each in values] for name, values in interleave(calls, rounds, 3).items()}
    return times


def _call(norm: str, dropout: float, shape: tuple[int, ...], *, last: bool, ours: bool) -> Callable[[], None]:
    import torch
    from torch import nn

    from hasten.nets.surgery.operate import operate

    torch.manual_seed(0)
    kind = nn.InstanceNorm3d if norm == "instance" else nn.BatchNorm3d
    block = nn.Sequential(kind(shape[1]), *([nn.Dropout(dropout)] if dropout else []), nn.PReLU())
    if ours:
        done = operate(block, torch.randn(2, shape[1], 4, 4, 4))
        assert done.fused == 1, done
    layout = torch.channels_last_3d if last else torch.contiguous_format
    image = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    gradient = torch.randn(shape).contiguous(memory_format=layout)
    return partial(_pass, block, image, gradient)


def _pass(block: Any, image: Any, gradient: Any) -> None:
    image.grad = None
    block.zero_grad()
    block(image).backward(gradient)
