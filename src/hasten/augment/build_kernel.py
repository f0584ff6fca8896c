"""One kernel into one library: `python -m hasten.augment.build_kernel OUT.pt2`, its pickled `Spec` on standard input.

A process of its own, so that several are built at a time and the one that trains never imports the compiler.
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
from hasten.augment.read import Cases, coordinates_of, read


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What is compiled, for one sample."""

    kind: Literal["apply", "read"]
    what: Any
    """A ValueOp; or (size, out, mode, padding_mode) of a reading."""
    shape: tuple[int, ...]
    """(C, *S) of what a ValueOp changes; (C,) of what is read."""
    spatial_dims: int
    dtype: str
    """Of the voxels that go in, as `torch.float16`."""


def function_of(spec: Spec) -> tuple[Callable[..., Tensor], tuple[Tensor, ...], bool]:
    """The function, example arguments, and whether the first one's length varies."""
    if spec.kind == "read":
        return _reading(spec)
    drawn = spec.what.draw(torch.zeros(1, 2, dtype=torch.int64), spec.shape)
    names = sorted(drawn)

    def apply(image: Tensor, *numbers: Tensor) -> Tensor:
        found: Tensor = spec.what.apply(image, dict(zip(names, numbers, strict=True)))
        return found

    return apply, (torch.zeros(1, *spec.shape), *(drawn[name].contiguous() for name in names)), False


def _reading(spec: Spec) -> tuple[Callable[..., Tensor], tuple[Tensor, ...], bool]:
    size, out, mode, padding_mode = spec.what
    channels, dtype = spec.shape[0], getattr(torch, spec.dtype.removeprefix("torch."))

    def reading(values: Tensor, shape: Tensor, offset: Tensor, start: Tensor, linear: Tensor, shift: Tensor) -> Tensor:
        return read(
            Cases(values, shape, offset, channels), torch.zeros(1, dtype=torch.int64), start,
            coordinates_of(Map(linear, shift), size, out), mode=mode, padding_mode=padding_mode,
            spatial_dims=spec.spatial_dims,
        )  # fmt: skip

    three = torch.zeros(1, 3, dtype=torch.int64)
    arguments = (
        torch.zeros(4096, dtype=dtype), three + 8, three[:, 0].clone(), three.clone(), torch.eye(3)[None],
        torch.zeros(1, 3),
    )  # fmt: skip
    return reading, arguments, True


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.function(*arguments)


def build(spec: Spec, path: Path) -> None:
    """Compile and write the library. Raises what the compiler raises."""
    function, arguments, varies = function_of(spec)
    dynamic: Any = tuple({0: torch.export.Dim.DYNAMIC} if varies and not at else None for at in range(len(arguments)))
    exported = torch.export.export(_Module(function), arguments, dynamic_shapes=(dynamic,))
    # Indices are clamped by construction; and as many threads as the process has then, not those of now.
    options = {"assert_indirect_indexing": False, "cpp.dynamic_threads": True}
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    build(pickle.load(sys.stdin.buffer), Path(os.fsdecode(sys.argv[1])))
