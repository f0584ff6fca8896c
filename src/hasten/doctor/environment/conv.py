"""A 3-D convolution in every precision and memory format: its time and its correctness."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv3d

from hasten.doctor.environment.check import Check, check
from hasten.doctor.environment.rates import times_of
from hasten.doctor.training import autocast, tensor_cores

TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}
"""Largest relative error (of norms) against float64 that counts as sound: a multiple of the precision's rounding."""
TINY = "tiny map"
_REPEATS = 3
"""Repeats of a convolution, since uninitialised memory may hold the right values by chance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvShape:
    """A convolution of 3 x 3 x 3, padded by 1."""

    name: str
    channels: int
    side: int
    """Side of the input's map, in voxels."""
    batch: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The result of one precision and memory format."""

    case: str
    precision: str
    channels_last: bool
    seconds: float = math.nan
    """Median time of forward and backward."""
    forward_error: float = math.nan
    """Relative error of norms against float64; NaN after NaNs or an error."""
    gradient_error: float = math.nan
    """Relative error of the weights' gradient, the worst of several repeats."""
    failure: str = ""
    """The error, if it failed."""

    @property
    def sound(self) -> bool:
        return self.forward_error <= TOLERANCE[self.precision] and self.gradient_error <= TOLERANCE[self.precision]

    @property
    def format(self) -> str:
        return "channels-last" if self.channels_last else "contiguous"


Conv = Callable[[Tensor, Tensor], Tensor]


def cases_for(device: torch.device) -> tuple[ConvShape, ...]:
    """A map as in the middle of a network, and one smaller than the filter, as at its coarsest level."""
    middle = (
        ConvShape(name="map", channels=32, side=64)
        if device.type == "cuda"
        else ConvShape(name="map", channels=16, side=24)
    )
    return middle, ConvShape(name=TINY, channels=32, side=2)


def probe_conv3d(device: torch.device, *, conv: Conv | None = None, rounds: int = 3) -> tuple[Cell, ...]:
    """Every cell of case x precision x memory format. conv: (input, weight) -> output; torch's own unless given."""
    precisions = ("fp32", "tf32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16")
    cells: list[Cell] = []
    for case in cases_for(device):
        for precision in precisions:
            alone = conv is None and device.type == "cpu" and precision == "bf16" and case.name == TINY
            cells += _cells_in_subprocess(case) if alone else _cells(case, precision, device, conv or _conv, rounds)
    return tuple(cells)


def _cells_in_subprocess(case: ConvShape) -> list[Cell]:
    """Run in a separate process: a faulty kernel may also write past the end of its memory."""
    command = [sys.executable, "-c", "from hasten.doctor.environment.conv import print_tiny; print_tiny()"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return [Cell(**cell) for cell in json.loads(completed.stdout.splitlines()[-1])]
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError, TypeError) as error:
        failure = "its process ended too early" if isinstance(error, IndexError) else str(error)
    return [Cell(case=case.name, precision="bf16", channels_last=last, failure=failure) for last in (False, True)]


def print_tiny() -> None:
    """The cells of a CPU's bf16 on the tiny map, as one line of JSON."""
    device = torch.device("cpu")
    cells = _cells(cases_for(device)[1], "bf16", device, _conv, 3)
    print(json.dumps([asdict(cell) for cell in cells]))


def _conv(image: Tensor, weight: Tensor) -> Tensor:
    return conv3d(image, weight, padding=1)


def _cells(case: ConvShape, precision: str, device: torch.device, conv: Conv, rounds: int) -> list[Cell]:
    """Cells of both memory formats."""
    inputs = _inputs(case, device)
    tensors = (*inputs, *_truth(*inputs))
    return [_cell(case, precision, channels_last, tensors, conv, rounds) for channels_last in (False, True)]


def _cell(
    case: ConvShape, precision: str, channels_last: bool, tensors: tuple[Tensor, ...], conv: Conv, rounds: int
) -> Cell:
    """tensors: image, weight, the gradient of the output, and the true output and gradient of the weight."""
    image, weight, back, true_output, true_gradient = tensors
    device = image.device
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    # A first layer's input needs no gradient, all others' do.
    image, weight = (tensor.detach().clone(memory_format=layout).requires_grad_() for tensor in (image, weight))

    def once() -> tuple[Tensor, Tensor]:
        weight.grad = image.grad = None
        with tensor_cores(device, precision):
            with autocast(device, precision):
                output = conv(image, weight)
            output.backward(back.to(output.dtype))
        assert weight.grad is not None
        return output.detach(), weight.grad

    errors = []
    try:
        for _ in range(_REPEATS):
            output, gradient = once()
            errors.append((_error(output, true_output), _error(gradient, true_gradient)))
        seconds = statistics.median(itertools.islice(times_of(once, device), rounds))
    except RuntimeError as error:
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Cell(case=case.name, precision=precision, channels_last=channels_last, failure=message)
    # Of NaN and a number, torch takes NaN as the larger one.
    forward, backward = torch.tensor(errors).amax(dim=0).tolist()
    return Cell(
        case=case.name,
        precision=precision,
        channels_last=channels_last,
        seconds=seconds,
        forward_error=forward,
        gradient_error=backward,
    )


def _inputs(case: ConvShape, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Image (B, C, S, S, S), weight (C, C, 3, 3, 3) and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.batch, case.channels, case.side, case.side, case.side)
    image = torch.randn(shape, generator=generator)
    weight = torch.randn(case.channels, case.channels, 3, 3, 3, generator=generator) / math.sqrt(27 * case.channels)
    back = torch.randn(shape, generator=generator)
    return image.to(device), weight.to(device), back.to(device)


def _truth(image: Tensor, weight: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Output and the weights' gradient in float64, by matrix products rather than a convolution."""
    image, back = image.double(), back.double()
    flat = weight.double().requires_grad_()
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1, 1, 1))
    depth, height, width = image.shape[2:]
    output = sum(
        torch.einsum("oc,bcdhw->bodhw", flat[:, :, z, y, x], padded[:, :, z : z + depth, y : y + height, x : x + width])
        for z in range(3)
        for y in range(3)
        for x in range(3)
    )
    assert isinstance(output, Tensor)
    output.backward(back)
    assert flat.grad is not None
    return output.detach(), flat.grad


def _error(result: Tensor, true: Tensor) -> float:
    """Norm of the difference over the norm of the truth; NaN of values that aren't finite."""
    return float((result.double() - true).norm() / true.norm())


def check_conv3d(cells: Iterable[Cell], device: str) -> tuple[Check, ...]:
    """A check for each unsound cell, and one for the fastest sound cell."""
    cells = tuple(cells)
    checks = [_unsound(cell, device) for cell in cells if not cell.sound]
    if not checks:
        text = "every precision and memory format gives what float64 does, forward and weights' gradient"
        checks.append(check("conv3d", "conv3d", f"{text}; {_fastest(cells)}"))
    elif any(cell.sound and cell.case == "map" for cell in cells):
        checks.append(check("conv3d", "fastest sound one", _fastest(cells)))
    return tuple(checks)


def _fastest(cells: tuple[Cell, ...]) -> str:
    sound = [cell for cell in cells if cell.case == "map" and cell.sound]
    if not sound:
        return "none is sound"
    best = min(sound, key=lambda cell: cell.seconds)
    return f"{best.precision} {best.format} is fastest, {1e3 * best.seconds:.2f} ms"


def _unsound(cell: Cell, device: str) -> Check:
    name = f"{cell.precision} {cell.format}, {cell.case}"
    if cell.failure:
        text = f"ends with: {cell.failure}"
    else:
        text = f"relative error {cell.forward_error:.2g} forward, {cell.gradient_error:.2g} of the weights' gradient"
        text += f" (sound: up to {TOLERANCE[cell.precision]:g})"
    if cell.case == TINY and cell.precision == "bf16" and device == "cpu":
        remedy = "nothing to do in Hasten's runs, which keep such layers in float32; elsewhere "
        remedy += "hasten.nets.surgery.keep_fp32"
        return check("conv3d", name, text, remedy)
    other = "fp32" if cell.precision != "fp32" else "bf16"
    remedy = f"train.precision={other}, or other versions of torch and cuDNN"
    if cell.channels_last:
        remedy = f"train.channels_last=false or {remedy}"
    return check("conv3d", name, text, remedy, level="bad")
