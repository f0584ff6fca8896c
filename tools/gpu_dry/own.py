"""Whether the fake device finds what it is there to find: each of these must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tools.gpu_dry.fake_device import CUDA, NoHostCopies, fake_cuda
from tools.gpu_dry.table import Check

FAULTS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda value: value.sum().item(),
    "tolist": lambda value: value.tolist(),
    "truth": lambda value: bool((value > 0).any()),
    "boolean-mask index": lambda value: value[value > 0],
    "nonzero": lambda value: value.nonzero(),
    "a tensor of the host": lambda value: value + torch.ones(4),
    "to the host": lambda value: value.cpu(),
    "from the host": lambda value: torch.ones(4).to(value.device),
    "a constant from the host": lambda value: value + torch.tensor([1.0, 2.0, 3.0, 4.0], device=value.device),
    "copy_ from the host": lambda value: value.copy_(torch.ones(4)),
    "backward, another dtype": lambda value: Drifts.apply(value.requires_grad_()).sum().backward(),
}


class Drifts(torch.autograd.Function):
    """Gives a gradient of half precision for a value of float32."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.half()


def own_checks() -> Iterator[Check]:
    for name, fault in FAULTS.items():
        yield Check("faults that must show", name, partial(_must_fail, fault))


def _must_fail(fault: Callable[[Tensor], Any]) -> None:
    with fake_cuda():
        value = torch.empty(4, device=CUDA)
        try:
            with NoHostCopies():
                fault(value)
        except Exception:
            return
    raise AssertionError("it went through")
