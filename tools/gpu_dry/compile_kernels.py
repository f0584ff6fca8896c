"""Every Triton kernel compiled for three generations of cards, on a machine without one: registers, spills, bytes.

The package's own functions run on meta tensors, and what they would launch is recorded and compiled, so that types,
sizes and alignment are those of a run. Needs a CUDA build of torch with its Triton. Exits with 1 if a kernel spills.

    python tools/gpu_dry/compile_kernels.py [--quick]
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

CARDS = (80, 90, 100)
_TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.uint8: "*u8", torch.int64: "*i64",
    torch.int32: "*i32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, and what decides the machine code that is made for it."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    """Places of arguments that are a multiple of 16."""
    warps: int
    stages: int

    def built(self, card: int) -> Any:
        source = ASTSource(
            fn=self.kernel,
            signature=dict(self.signature),
            constexprs=dict(self.constants),
            attrs={(place,): [["tt.divisibility", 16]] for place in self.aligned},
        )
        return triton.compile(
            source, target=GPUTarget("cuda", card, 32), options={"num_warps": self.warps, "num_stages": self.stages}
        )

    def __str__(self) -> str:
        pointers = next((kind[1:] for _, kind in self.signature if kind.startswith("*")), "")
        known = ", ".join(f"{name}={int(value)}" for name, value in self.constants if value is not None)
        return f"{self.kernel.__name__} {pointers} {known}"


def launch_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    warps, stages = kwargs.pop("num_warps", 4), kwargs.pop("num_stages", 3)
    given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature, constants, aligned = [], [], []
    for place, name in enumerate(kernel.arg_names):
        value = given[name]
        kind = "constexpr"
        if isinstance(value, Tensor):
            kind = _TYPES[value.dtype]
            aligned.append(place)
        elif isinstance(value, float):
            kind = "fp32"
        elif (
            value is None
            or kernel.params[place].is_constexpr
            or (value == 1 and not kernel.params[place].do_not_specialize)
        ):
            constants.append((name, value))
        else:
            kind = "i32" if value < 2**31 else "i64"
            aligned += [place] if value % 16 == 0 and not kernel.params[place].do_not_specialize else []
        signature.append((name, kind))
    return Launch(kernel, tuple(signature), tuple(constants), tuple(aligned), warps, stages)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Launches of kernels, which do nothing meanwhile."""
    launches: list[Launch] = []
    before = JITFunction.run
    JITFunction.run = lambda self, *args, grid, warmup, **kwargs: launches.append(launch_of(self, args, kwargs))
    try:
        yield launches
    finally:
        JITFunction.run = before


def norms(shape: tuple[int, ...], dtype: torch.dtype, slope: str, *, dropout: bool = False) -> None:
    """An instance norm; a batch norm where it has a dropout."""
    from hasten.nets.surgery.normact_triton import triton_norm_act

    image = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=torch.channels_last_3d).requires_grad_()
    channels = torch.empty(shape[1], device="meta", requires_grad=True)
    given: Any = {"number": 0.01, "one": channels[:1], "each": channels, "none": None}[slope]
    affine = channels if slope != "one" else None
    groups = 0 if dropout else shape[1]
    triton_norm_act(image, groups, affine, affine, given, 1e-5, 0.2 * dropout)[0].sum().backward()


def losses(shape: tuple[int, ...], dtype: torch.dtype, label: torch.dtype, last: bool) -> None:
    from hasten.nets.losses.soft_counts_triton import triton_counts

    layout = torch.channels_last_3d if last else torch.contiguous_format
    scores = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout).requires_grad_()
    index = torch.empty(shape[0], 1, *shape[2:], dtype=label, device="meta")
    for surprised in (True, False):
        hit, predicted, _, surprise = triton_counts(scores, index, surprised=surprised)
        (hit.sum() + predicted.sum() + (surprise.sum() if surprised else 0)).backward()  # type: ignore[union-attr]


def reads(values: torch.dtype, channels: int, mode: str, padding_mode: str, dims: int) -> None:
    from hasten.augment.maps import identity
    from hasten.augment.read_triton import read_by_kernel

    size = (1 if dims == 2 else 40, 56, 40)
    table = torch.empty(16, 3, dtype=torch.int64, device="meta")
    read_by_kernel(
        torch.empty(2**24, dtype=values, device="meta"), table, table[:, 0], channels, table[:, 0], table,
        identity(16, table.device), size, size, mode=mode, padding_mode=padding_mode, spatial_dims=dims,
    )  # fmt: skip


def joins(rows: int, width: int) -> None:
    from hasten.kernels.columns import copy_columns

    both = torch.empty(rows, 2 * width, dtype=torch.bfloat16, device="meta")
    copy_columns(both[:, width:], torch.empty(rows, width, dtype=torch.bfloat16, device="meta"))


def few_channels(
    few: int, channels: int, sides: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    """Convolutions from few channels and the gradient of their filters, and, likewise transposed or not, to few."""
    from hasten.nets.surgery.few_triton import convolve, geometry_of, narrow, outer_products

    def made(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta")

    padding = tuple(side // 2 for side in kernel)
    small = tuple(-(-side // step) for side, step in zip(sides, stride, strict=True))
    many, fewer, taps = (2 * math.prod(sides), 2 * math.prod(small), math.prod(kernel))
    geometry = geometry_of(sides, small, kernel, stride, padding)
    convolve(made(many, few), made(channels, few, taps), made(fewer, channels), geometry)
    outer_products(made(many, few), made(fewer, channels), geometry)
    filters, bias = made(taps, channels, few), made(few)
    narrow(made(many, channels), filters, bias, made(fewer, few), geometry, transposed=False)
    geometry = geometry_of(small, sides, kernel, stride, padding)
    narrow(made(fewer, channels), filters, None, made(many, few), geometry, transposed=True)


def blurs() -> None:
    from hasten.augment.smooth_triton import along

    along(torch.empty(2, 1, 128, 128, 128, device="meta"), torch.empty(2, 17, device="meta"), 2, "reflect")


def chains(values: torch.dtype, channels: int, patch: tuple[int, int, int], dims: int) -> None:
    from hasten.augment.chain import Warp, stages_of
    from hasten.augment.draw import Draws
    from hasten.augment.fused import fused_places, launch_fused
    from hasten.augment.maps import identity
    from hasten.augment.presets import nnunet_chain
    from hasten.augment.read import PackedCases

    key = torch.empty(2, 2, dtype=torch.int64, device="meta")
    stages = stages_of(nnunet_chain(patch, num_channels=channels, spatial_dims=dims), patch)
    first = stages[0]
    assert isinstance(first, Warp)
    drawn = [each.op.draw(key, (channels, *patch[3 - dims :])) for each in stages[1:]]  # type: ignore[union-attr]
    use = {"use": torch.empty(2, dtype=torch.bool, device="meta")}
    grid = dict.fromkeys(first.readings, identity(2, key.device))
    start = torch.empty(2, 3, dtype=torch.int64, device="meta")
    draws = Draws(key[:, 0], key[:, 0], start, key, (grid, *({**each, **use} for each in drawn)))
    cases = {
        "image": PackedCases(torch.empty(2**24, dtype=values, device="meta"), start, key[:, 0], channels),
        "label": PackedCases(torch.empty(2**24, dtype=torch.uint8, device="meta"), start, key[:, 0], 1),
    }
    launch_fused(stages, fused_places(stages), cases, draws, dims)


def numbers(count: int) -> None:
    from hasten.sample import random_triton

    key = torch.empty(16, 2, dtype=torch.int64, device="meta")
    random_triton.words(key, 7, count)
    random_triton.uniforms(key, 7, 0.0, 1.0, count)
    random_triton.normals(key, 7, count)
    random_triton.hashed(key)
    random_triton.sample_keys(key[0, 0], key[:, 0])
    random_triton.salted_keys(key, 7, 3, count=8)


def work(quick: bool) -> Iterator[Callable[[], None]]:
    """Calls that launch kernels: of every kind for a large image, the usual kind for others."""
    large, small, odd = (2, 32, 128, 128, 128), (2, 320, 8, 8, 8), (2, 33, 24, 20, 18)
    kinds = [(large, torch.bfloat16, "number")]
    if not quick:
        kinds += [(large, torch.float32, "number"), (small, torch.bfloat16, "number"), (odd, torch.float16, "number")]
        kinds += [(large, torch.bfloat16, slope) for slope in ("one", "each", "none")]
    for kind in kinds:
        yield partial(norms, *kind)
    yield partial(norms, (16, 16, 96, 96, 96), torch.bfloat16, "one", dropout=True)
    yield from (partial(numbers, 3), partial(numbers, 90_000), partial(joins, 2**24, 32), partial(joins, 8192, 320))
    cube, plane = (96, 96, 96), (512, 512)
    kinds_of_few: list[tuple[Any, ...]] = [(1, 32, cube, (3, 3, 3), (1, 1, 1)), (2, 64, cube, (3, 3, 3), (2, 2, 2))]
    if not quick:
        kinds_of_few += [
            (2, 2, cube, (3, 3, 3), (1, 1, 1)), (3, 32, cube, (3, 3, 3), (1, 1, 1)),
            (4, 320, cube, (1, 3, 3), (1, 2, 2)), (3, 20, plane, (3, 3), (1, 1)), (3, 24, plane, (3, 3), (1, 1)),
            (1, 32, plane, (7, 7), (2, 2)), (4, 16, (1, 33, 35), (1, 1, 1), (1, 1, 1)),
        ]  # fmt: skip
    for each in kinds_of_few:
        yield partial(few_channels, *each)
    yield blurs
    yield partial(chains, torch.float16, 1, (128, 128, 128), 3)
    if not quick:
        yield partial(chains, torch.float32, 4, (40, 56, 40), 3)
        yield partial(chains, torch.float16, 3, (1, 512, 512), 2)
    read = [(torch.float16, 1, "bilinear", "zeros", 3), (torch.uint8, 1, "nearest", "zeros", 3)]
    if not quick:
        read += [(torch.float16, 4, "bilinear", "reflection", 3), (torch.uint8, 1, "nearest", "border", 3)]
        read += [(torch.float32, 3, "bilinear", "border", 2), (torch.float32, 20, "bilinear", "zeros", 3)]
    for each in read:
        yield partial(reads, *each)
    few, many, most = (2, 2, 128, 128, 128), (2, 14, 128, 128, 128), (1, 128, 33, 20, 18)
    scores = [(few, torch.bfloat16, torch.uint8), (many, torch.bfloat16, torch.uint8)]
    if not quick:
        scores += [(many, torch.float32, torch.int64), (most, torch.float16, torch.int64)]
    for each, last in product(scores, (True, False)):
        yield partial(losses, *each, last)


def usage(ptx: str, card: int) -> tuple[int, int, str]:
    """Registers, bytes of spills, and what ptxas said. Raises RuntimeError if it refuses."""
    folder = Path(nvidia.__file__).parent / "bin"
    assembler = folder / ("ptxas-blackwell" if card >= 100 and (folder / "ptxas-blackwell").exists() else "ptxas")
    target = re.search(r"\.target (\w+)", ptx)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        done = subprocess.run(
            [assembler, "-v", f"--gpu-name={target[1]}", file.name, "-o", os.devnull], capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    registers, spills = re.search(r"Used (\d+) registers", done.stderr), re.findall(r"(\d+) bytes spill", done.stderr)
    assert registers is not None
    return int(registers[1]), sum(map(int, spills)), done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape, bf16, one kind of activation")
    quick = parser.parse_args().quick
    with recorded() as launches:
        for call in work(quick):
            call()
    spilled = 0
    distinct = list(dict.fromkeys(launches))
    print(f"{len(distinct)} kernels; registers and bytes of spills for " + ", ".join(f"sm_{card}" for card in CARDS))
    for launch in distinct:
        cells = []
        for card in CARDS:
            ptx = launch.built(card).asm["ptx"]
            registers, spills, _ = usage(ptx, card)
            wide = max((int(width) for width in re.findall(r"ld\.global[\w.:]*\.v(\d)", ptx)), default=1)
            spilled += spills
            cells.append(f"{registers:3d} regs {spills} spills v{wide}")
        print(" | ".join(cells), "|", launch, flush=True)
    print("no spills" if not spilled else f"{spilled} bytes of spills")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
