"""Compiles one kernel: `python -m hasten.augment.build_kernel OUT.pt2`, with a pickled `Spec` on standard input.

A separate process, so that several are built in parallel and the training process never imports the compiler.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from hasten.augment.maps import Map
from hasten.augment.read import PackedCases, coordinates_of, read

_OPTIONS: dict[str, Any] = {
    "assert_indirect_indexing": False,  # indices are clamped by construction
    "cpp.dynamic_threads": True,  # as many as the process has then, not those of now
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.precompile_headers": False,  # pays from the third kernel on
}
_QUICK: dict[str, Any] = {"cpp.vec_isa_ok": True}
"""Saves compiling a probe for each instruction set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The work to compile, for one sample."""

    kind: Literal["apply", "read"]
    what: Any
    """ValueOps, one after the other; or of keys that are read at the same places (size, out, padding_mode,
    ((mode, C, dtype), ...))."""
    shape: tuple[int, ...]
    """(C, *S) of what ValueOps change."""
    spatial_dims: int


Function = Callable[..., Tensor | tuple[Tensor, ...]]


def function_of(spec: Spec) -> tuple[Function, tuple[Tensor, ...], int]:
    """The function, example arguments, and how many of the leading ones vary in length.

    Arguments of "apply": an image (1, C, *S) and the numbers (1, ...), sorted by name. Of "read": the flat values (n,)
    of each key, then shape (1, 3), offset (1,), start (1, 3), linear (1, 3, 3) and shift (1, 3).
    """
    if spec.kind == "read":
        return _reading(spec)
    key = torch.zeros(1, 2, dtype=torch.int64)
    drawn = {
        f"{number}.{name}": value.contiguous()
        for number, op in enumerate(spec.what)
        for name, value in op.draw(key, spec.shape).items()
    }
    names = sorted(drawn)

    def apply(image: Tensor, *numbers: Tensor) -> Tensor:
        tensors = dict(zip(names, numbers, strict=True))
        for number, op in enumerate(spec.what):
            start = f"{number}."
            op_numbers = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
            image = op.apply(image, op_numbers)
        return image

    return apply, (torch.zeros(1, *spec.shape), *(drawn[name] for name in names)), 0


def _reading(spec: Spec) -> tuple[Function, tuple[Tensor, ...], int]:
    size, out, padding_mode, keys = spec.what

    def reading(*arguments: Tensor) -> tuple[Tensor, ...]:
        shape, offset, start, linear, shift = arguments[len(keys) :]
        coordinates = coordinates_of(Map(linear, shift), size, out)
        first = torch.zeros(1, dtype=torch.int64)
        options = {"padding_mode": padding_mode, "spatial_dims": spec.spatial_dims}
        packed = [PackedCases(each, shape, offset, count) for each, (_, count, _) in zip(arguments, keys, strict=False)]
        modes = [mode for mode, _, _ in keys]
        return tuple(
            read(cases, first, start, coordinates, mode=mode, **options)
            for cases, mode in zip(packed, modes, strict=True)
        )

    three = torch.zeros(1, 3, dtype=torch.int64)
    # Different lengths, so that the compiler does not treat them as equal.
    values = [
        torch.zeros(4096 + 64 * number, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for number, (_, _, dtype) in enumerate(keys)
    ]
    place = (three + 8, three[:, 0].clone(), three.clone(), torch.eye(3)[None], torch.zeros(1, 3))
    return reading, (*values, *place), len(keys)


class _Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(*arguments)


def build(spec: Spec, path: Path) -> None:
    """Compile and write the library. Raises the compiler's errors."""
    function, arguments, varies = function_of(spec)
    dynamic: Any = tuple({0: torch.export.Dim.DYNAMIC} if at < varies else None for at in range(len(arguments)))
    exported = torch.export.export(_Module(function), arguments, dynamic_shapes=(dynamic,))
    try:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=_OPTIONS | _QUICK)
    except Exception:
        # An older compiler than the processor: let torch try what the compiler knows.
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=_OPTIONS)


def try_out(spec: Spec, path: Path) -> None:
    """Load a library and run it once. AssertionError if its results differ from the function's.

    A library that was linked with another C++ runtime than torch's crashes the process that loads it; better this one
    than the training process.
    """
    function, arguments, _ = function_of(spec)
    expected = function(*arguments)
    actual = opened(path)([each.contiguous() for each in arguments])
    for one, other in zip(actual, (expected,) if isinstance(expected, Tensor) else expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def opened(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """A library as a function of its arguments, contiguous and shaped as those of `function_of`: (1, ...) or (n,)."""
    # The public aoti_load_package returns a wrapper of this one, but imports the whole compiler.
    library: Any = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    run: Callable[[list[Tensor]], list[Tensor]] = library.boxed_run
    return run


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    spec, path = pickle.load(sys.stdin.buffer), Path(os.fsdecode(sys.argv[1]))
    build(spec, path)
    try_out(spec, path)
