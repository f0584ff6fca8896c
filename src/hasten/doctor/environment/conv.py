"""A 3-D convolution in every precision and memory format, against float64: a wrong gradient shows in no loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import conv3d

from hasten.devices import kind_of
from hasten.doctor.environment.check import Check, check
from hasten.doctor.training import autocast, tensor_cores
from hasten.files import first_line

TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}
"""Largest relative error (of norms) against float64 that counts as sound: a multiple of the precision's rounding."""
SIDES = {"map": 24, "tiny map": 2}
"""Voxels along a side of the map: as in the middle of a network, and smaller than the filter, as at its coarsest."""
_CHANNELS, _BATCH = 32, 2
_REPEATS = 3
"""Repeats of a convolution, since uninitialised memory may hold the right values by chance."""

Conv = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The result of one precision and memory format."""

    case: str
    precision: str
    channels_last: bool
    forward_error: float = math.nan
    """Relative error of norms against float64; NaN after NaNs or an error."""
    gradient_error: float = math.nan
    """Relative error of the weights' gradient, the worst of several repeats."""
    failure: str = ""
    """The error, if it failed."""

    @property
    def sound(self) -> bool:
        return self.forward_error <= TOLERANCE[self.precision] and self.gradient_error <= TOLERANCE[self.precision]


def _conv(image: Tensor, weight: Tensor) -> Tensor:
    return conv3d(image, weight, padding=1)


def probe_conv3d(device: torch.device, *, conv: Conv = _conv) -> tuple[Cell, ...]:
    """Every cell of case x precision x memory format. conv: (input, weight) -> output.

    Not a CPU's bf16 on the tiny map, which may write past the end of its memory; a check of the versions names it.
    """
    precisions = kind_of(device).precisions if kind_of(device).accelerator else ("fp32", "bf16")
    cells = []
    for case, side in SIDES.items():
        tensors = _tensors(side, device)
        for precision in precisions:
            if device.type == "cpu" and precision == "bf16" and side < 3:
                continue
            cells += [_cell(case, precision, channels_last, tensors, conv) for channels_last in (False, True)]
    return tuple(cells)


def _tensors(side: int, device: torch.device) -> tuple[Tensor, ...]:
    """Image (B, C, S, S, S), weight and the gradient of the output; output and weights' gradient in float64.

    The latter two are of the CPU, which computes float64 without the libraries that are checked.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (_BATCH, _CHANNELS, side, side, side)
    image = torch.randn(shape, generator=generator)
    weight = torch.randn(_CHANNELS, _CHANNELS, 3, 3, 3, generator=generator) / math.sqrt(27 * _CHANNELS)
    back = torch.randn(shape, generator=generator)
    true_weight = weight.double().requires_grad_()
    output = _conv(image.double(), true_weight)
    output.backward(back.double())
    assert true_weight.grad is not None
    return tuple(tensor.detach().to(device) for tensor in (image, weight, back, output, true_weight.grad))


def _cell(case: str, precision: str, channels_last: bool, tensors: tuple[Tensor, ...], conv: Conv) -> Cell:
    image, weight, back, true_output, true_gradient = tensors
    device = image.device
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    # A first layer's input needs no gradient, all others' do.
    image, weight = (tensor.detach().clone(memory_format=layout).requires_grad_() for tensor in (image, weight))
    errors: list[tuple[float, float]] = []
    cell = Cell(case=case, precision=precision, channels_last=channels_last)
    try:
        for _ in range(_REPEATS):
            weight.grad = image.grad = None
            with tensor_cores(device, precision):
                with autocast(device, precision):
                    output = conv(image, weight)
                output.backward(back.to(output.dtype))
            assert weight.grad is not None
            errors.append((_error(output.detach(), true_output), _error(weight.grad, true_gradient)))
    except RuntimeError as error:
        return replace(cell, failure=first_line(error))
    # Of NaN and a number, torch takes NaN as the larger one.
    forward, backward = torch.tensor(errors).amax(dim=0).tolist()
    return replace(cell, forward_error=forward, gradient_error=backward)


def _error(result: Tensor, true: Tensor) -> float:
    """Norm of the difference over the norm of the truth; NaN of values that aren't finite."""
    return float((result.double() - true).norm() / true.norm())


def check_conv3d(cells: Iterable[Cell]) -> tuple[Check, ...]:
    """A check for each unsound cell, or one that all are sound."""
    wrong = tuple(_unsound(cell) for cell in cells if not cell.sound)
    text = "every precision and memory format gives what float64 does, forward and weights' gradient"
    return wrong or (check("conv3d", "conv3d", text),)


def _unsound(cell: Cell) -> Check:
    form = "channels-last" if cell.channels_last else "contiguous"
    text = f"ends with: {cell.failure}"
    if not cell.failure:
        text = f"relative error {cell.forward_error:.2g} forward, {cell.gradient_error:.2g} of the weights' gradient"
        text += f" (sound: up to {TOLERANCE[cell.precision]:g})"
    other = "fp32" if cell.precision != "fp32" else "bf16"
    remedy = f"train.precision={other}, or other versions of torch and cuDNN"
    if cell.channels_last:
        remedy = f"train.channels_last=false or {remedy}"
    return check("conv3d", f"{cell.precision} {form}, {cell.case}", text, remedy, level="bad")
