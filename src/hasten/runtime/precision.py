"""Precision and memory format of a step: float32, TF32, or autocast to 16 bits; channels first or last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hasten.devices import kind_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The autocast context of a precision name; it is switched off for fp32 and tf32."""
    dtype = DTYPES.get(precision)
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def scaler_for(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """The gradient scaler of a precision: at work for fp16 only, whose gradients would vanish without one."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


@contextmanager
def tensor_cores(device: torch.device, precision: str) -> Iterator[None]:
    """Run float32 multiplications on a GPU as TF32 (10 bits) inside the block, or as float32 if `precision` is fp32.

    Under autocast what is left in float32 (losses, norms, optimizers that multiply) keeps torch's own setting.
    """
    if not kind_of(device).cudnn or precision not in ("fp32", "tf32"):
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # torch has an older switch, too. Inductor reads both, and reading the older one raises where they differ.
    older: list[Any] = [matmul, cudnn]
    newer: list[Any] = [matmul, cudnn.conv, cudnn.rnn]  # type: ignore[attr-defined]
    before = [place.fp32_precision for place in newer]
    older_before = [_allows_tf32(matmul, before[0]), _allows_tf32(cudnn, before[1])]
    try:
        for place in older:
            place.allow_tf32 = precision == "tf32"
        for place in newer:
            place.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for place, value in zip(older, older_before, strict=True):
            place.allow_tf32 = value
        for place, value in zip(newer, before, strict=True):
            place.fp32_precision = value


def _allows_tf32(place: Any, newer: str) -> bool:
    """The older switch, or what the newer one says where the user has set that one alone."""
    try:
        allowed: bool = place.allow_tf32
    except RuntimeError:
        return newer == "tf32"
    return allowed


@contextmanager
def autotuned(device: torch.device, on: bool = True) -> Iterator[None]:
    """Let cuDNN, on a GPU, time its algorithms for each shape that is new inside the block, and keep the fastest.

    On an H100 that takes 3 to 11 s for a network and gains less than 2 % on cuDNN's heuristics. Whole volumes of a
    validation each have their own shape. Where deterministic algorithms are asked for, and unless `on`, nothing is
    changed.
    """
    if not on or not kind_of(device).cudnn or torch.are_deterministic_algorithms_enabled():
        yield
        return
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, not cudnn.deterministic
    try:
        yield
    finally:
        cudnn.benchmark = before


def memory_format(spatial_dims: int, channels_last: bool) -> torch.memory_format:
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last_3d if spatial_dims == 3 else torch.channels_last


def to_layout(image: Tensor, spatial_dims: int, layout: torch.memory_format) -> Tensor:
    """(B, C, D, H, W) as a network takes it: D squeezed away in 2-D, in the chosen memory format."""
    return (image if spatial_dims == 3 else image[:, :, 0]).contiguous(memory_format=layout)


def to_memory_format(network: nn.Module, spatial_dims: int, channels_last: bool) -> nn.Module:
    """The network itself, its weights in the memory format."""
    network.to(memory_format=memory_format(spatial_dims, channels_last))  # type: ignore[call-overload]
    return network
