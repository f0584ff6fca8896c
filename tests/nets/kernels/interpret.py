"""Values and gradients of the Triton kernels in Triton's interpreter, on a CPU, against plain operations in float64.

Run by `test_interpreted.py` as a program of its own, as TRITON_INTERPRET must be set before Triton is imported.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, grad

from benchmarks.gpus.written_out import written_out
from hasten.kernels.columns import copy_columns
from hasten.nets.losses.soft_counts import _SoftCounts
from hasten.nets.losses.soft_counts_triton import triton_counts
from hasten.nets.surgery.few_triton import convolve, geometry_of, narrow, outer_products
from hasten.nets.surgery.layout import as_maps, as_rows
from hasten.nets.surgery.normact_triton import triton_norm_act

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Of the largest value."""


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def image_of(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> Tensor:
    layout = torch.channels_last_3d if len(shape) == 5 else torch.channels_last
    image = (normal(*shape) * 3 + 5).to(dtype)
    return image.contiguous(memory_format=layout if last else torch.contiguous_format)


def outcome(call: Callable[..., Tensor], leaves: list[Any], upstream: Tensor) -> list[Tensor]:
    """The output and the gradients of all that has one."""
    leaves = [each.detach().clone().requires_grad_() if torch.is_tensor(each) else each for each in leaves]
    result = call(*leaves)
    result.backward(upstream.to(result.dtype))
    return [result.detach(), *(each.grad for each in leaves if torch.is_tensor(each))]


def double(each: Any) -> Any:
    return each.double() if torch.is_tensor(each) else each


def compare(result: list[Tensor], wanted: list[Tensor], share: float, name: str) -> None:
    for place, (one, other) in enumerate(zip(result, wanted, strict=True)):
        apart, largest = (one.double() - other).abs().max(), other.abs().max()
        assert apart <= share * largest + 1e-6, f"{name}, {place}: {float(apart):.3g} of {float(largest):.3g}"


def norm(shape: tuple[int, ...], groups: int, dtype: torch.dtype, slope: Any, affine: bool) -> None:
    image = image_of(shape, dtype, True)
    channels = shape[1]
    # Half a tensor: a gradient that is neither contiguous nor channels-last.
    upstream = normal(*shape[:-1], 2 * shape[-1]).to(dtype)[..., ::2]
    factor = {"one": torch.tensor([0.25]), "each": torch.randn(channels)}.get(slope, slope)
    leaves = [image, torch.randn(channels) if affine else None, torch.randn(channels) if affine else None, factor]
    result = outcome(lambda x, w, b, s: triton_norm_act(x, groups, w, b, s, 1e-5)[0], leaves, upstream)
    wanted = outcome(
        lambda x, w, b, s: written_out(x, groups, w, b, s, 1e-5), [double(each) for each in leaves], upstream.double()
    )
    assert result[0].dtype == result[1].dtype == dtype
    assert result[0].stride() == result[1].stride() == image.stride()
    compare(result, wanted, TOLERANCE[dtype], f"norm {shape} {groups} {dtype} {slope} affine={affine}")


def norms() -> None:
    for shape, groups in [((2, 3, 4, 5, 6), 3), ((2, 4, 9, 7), 2), ((1, 1, 3, 3, 3), 1), ((2, 5, 40, 60), 5)]:
        kinds = [(None, True), (0.0, False), (0.01, True), ("one", False), ("each", True)]
        for slope, affine in kinds if shape[-1] < 60 else kinds[-1:]:
            norm(shape, groups, torch.float32, slope, affine)
        for dtype in (torch.bfloat16, torch.float16):
            norm(shape, groups, dtype, 0.01, True)
    for shape, groups in [((1, 33, 3, 2, 2), 33), ((1, 96, 2, 2, 2), 96), ((1, 320, 1, 1, 1), 32), ((2, 6, 2, 1), 1)]:
        norm(shape, groups, torch.float32, 0.1, True)


def few_channels() -> None:
    """Convolutions of few channels, and the gradients of their filters."""
    for dims, few, channels, kernel, stride, padding in [
        (3, 1, 32, (3, 3, 3), (1, 1, 1), (1, 1, 1)),
        (3, 2, 2, (3, 3, 3), (1, 1, 1), (1, 1, 1)),
        (3, 3, 20, (3, 1, 3), (1, 2, 1), (1, 0, 2)),
        (3, 4, 70, (3, 3, 3), (2, 2, 2), (1, 1, 1)),
        (2, 3, 16, (7, 5), (2, 1), (3, 0)),
        (2, 4, 5, (1, 1), (1, 1), (0, 0)),
    ]:
        for dtype in (torch.float32, torch.float16):  # of bf16, the interpreter multiplies the bits
            few_channels_of(dims, few, channels, kernel, stride, padding, dtype)


def few_channels_of(
    dims: int, few: int, channels: int, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    image = image_of((2, few, 3, 5, 7)[: dims + 2], dtype, True)
    weight = normal(channels, few, *kernel).to(dtype)
    convolution = functional.conv3d if dims == 3 else functional.conv2d
    gradient_of = grad.conv3d_weight if dims == 3 else grad.conv2d_weight
    wanted = convolution(image.double(), weight.double(), None, stride, padding)
    geometry = geometry_of(image.shape[2:], wanted.shape[2:], kernel, stride, padding)
    rows = torch.full((wanted[:, 0].numel(), channels), torch.nan, dtype=dtype)
    convolve(as_rows(image), weight.flatten(2), rows, geometry)
    gradient = as_maps(normal(len(rows), channels).to(dtype), 2, wanted.shape[2:])
    sums = outer_products(as_rows(image), as_rows(gradient), geometry)
    filters = gradient_of(image.double(), weight.shape, gradient.double(), stride, padding)
    name = f"{few} channels to {channels} {kernel} {stride} {padding} {dtype}"
    compare([as_maps(rows, 2, wanted.shape[2:])], [wanted], TOLERANCE[dtype], name)
    compare([sums.float()], [filters.flatten(2)], 1e-5, f"filters of {name}")


def narrow_results() -> None:
    """Convolutions to few channels, transposed ones among them."""
    for dims, channels, few, kernel, stride, padding in [
        (3, 32, 3, (3, 3, 3), (1, 1, 1), (1, 1, 1)),
        (3, 20, 2, (3, 1, 3), (1, 2, 1), (1, 0, 2)),
        (3, 70, 1, (2, 2, 2), (2, 2, 2), (0, 0, 0)),
        (3, 16, 4, (3, 3, 3), (2, 1, 2), (1, 1, 1)),
        (2, 5, 3, (1, 1), (1, 1), (0, 0)),
    ]:
        for transposed, dtype in product((False, True), (torch.float32, torch.float16)):
            narrow_result(dims, channels, few, kernel, stride, padding, transposed, dtype)


def narrow_result(
    dims: int, channels: int, few: int, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    transposed: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    image, bias = image_of((2, channels, 3, 5, 6)[: dims + 2], dtype, True), normal(few).to(dtype)
    weight = normal(*((channels, few) if transposed else (few, channels)), *kernel).to(dtype)
    names = {(2, False): "conv2d", (3, False): "conv3d", (2, True): "conv_transpose2d", (3, True): "conv_transpose3d"}
    layer = getattr(functional, names[dims, transposed])
    wanted = layer(image.double(), weight.double(), bias.double(), stride, padding)
    geometry = geometry_of(image.shape[2:], wanted.shape[2:], kernel, stride, padding)
    filters = weight.movedim((0, 1), (-2, -1) if transposed else (-1, -2)).reshape(-1, channels, few).contiguous()
    for given in (bias, None):
        rows = torch.full((wanted[:, 0].numel(), few), torch.nan, dtype=dtype)
        narrow(as_rows(image), filters, given, rows, geometry, transposed=transposed)
        exact = wanted if given is not None else wanted - bias.double().view(-1, *[1] * dims)
        name = f"{channels} to {few} channels {kernel} {stride} {padding} {transposed} {dtype}"
        compare([as_maps(rows, 2, wanted.shape[2:])], [exact], TOLERANCE[dtype], name)


def batch_norms() -> None:
    """Norms of the whole batch, and by statistics that are given."""
    for shape in [(3, 5, 4, 5, 6), (2, 33, 9, 7), (4, 16, 40, 60)]:
        for slope, affine, dtype in [
            (None, True, torch.float32),
            ("one", False, torch.float32),
            ("each", True, torch.bfloat16),
        ]:
            for fixed in (False, True):
                batch_norm(shape, dtype, slope, affine, fixed)


def batch_norm(shape: tuple[int, ...], dtype: torch.dtype, slope: Any, affine: bool, fixed: bool) -> None:
    image, channels = image_of(shape, dtype, True), shape[1]
    upstream = normal(*shape).to(dtype)
    factor = {"one": torch.tensor([0.25]), "each": torch.randn(channels)}.get(slope, slope)
    leaves = [image, *((torch.randn(channels), torch.randn(channels)) if affine else (None, None)), factor]
    mean, var = (torch.randn(channels), torch.rand(channels) + 0.5) if fixed else (None, None)
    moments = torch.stack([mean, (var + 1e-5).rsqrt()])[:, None] if fixed else None

    def torchs(image: Tensor, weight: Any, bias: Any, slope: Any) -> Tensor:
        normed = functional.batch_norm(image, double(mean), double(var), weight, bias, not fixed, 0.0, 1e-5)
        return normed if slope is None else functional.prelu(normed, slope)

    result = outcome(lambda x, w, b, s: triton_norm_act(x, 0, w, b, s, 1e-5, 0.0, moments)[0], leaves, upstream)
    wanted = outcome(torchs, [double(each) for each in leaves], upstream.double())
    assert result[0].stride() == result[1].stride() == image.stride()
    compare(result, wanted, TOLERANCE[dtype], f"batch norm {shape} {dtype} {slope} affine={affine} fixed={fixed}")


def dropouts() -> None:
    for groups in (6, 0):
        for share in (0.2, 0.5):
            dropout(image_of((2, 6, 12, 30, 20), torch.float32, True), groups, share)


def dropout(image: Tensor, groups: int, share: float) -> None:
    leaves = [image, torch.rand(6) + 0.5, torch.randn(6), torch.tensor([0.25])]
    upstream = normal(*image.shape).to(image.dtype)

    def drop(image: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
        torch.manual_seed(1)
        return triton_norm_act(image, groups, weight, bias, slope, 1e-5, share)[0]

    result = outcome(drop, leaves, upstream)
    kept = (result[0] != 0).double() - (1 - share)
    # Of independent draws, also among neighbours and equal places of channels and cases.
    assert abs(float(kept.mean())) < 0.01
    for shift in ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 0, 1), (0, 0, 0, 0, 7)):
        moved = kept.roll(shift, (0, 1, 2, 3, 4))
        assert abs(float((kept * moved).sum())) < 5 * share * (1 - share) * kept.numel() ** 0.5, shift

    def torchs(image: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
        normed = (
            functional.group_norm(image, groups, weight, bias)
            if groups
            else functional.batch_norm(image, None, None, weight, bias, True)
        )
        return functional.prelu(normed * (result[0] != 0) / (1 - share), slope)

    wanted = outcome(torchs, [double(each) for each in leaves], upstream.double())
    compare(result, wanted, TOLERANCE[torch.float32], f"dropout {groups} {share}")
    torch.manual_seed(2)
    other = triton_norm_act(*leaves[:1], groups, *leaves[1:], 1e-5, share)[0]
    assert not torch.equal(other, result[0])


def long_dropout() -> None:
    """Zeros of many elements, as far apart as rows and planes of a large image."""
    image = torch.zeros(1, 1, 2, 1024, 2048)
    torch.manual_seed(3)
    zeros = triton_norm_act(image, 1, None, torch.ones(1), None, 1e-5, 0.5)[0].flatten() == 0
    signs = zeros.float() - 0.5
    for apart in (1, 2, 8, 32, 96, 1024, 9216, 32768, 294912):
        total = float((signs[apart:] * signs[:-apart]).sum())
        assert abs(total) < 5 * 0.25 * (len(signs) - apart) ** 0.5, apart


def far_from_zero() -> None:
    """A variance that sums of squares would lose, and one voxel that is far from all others."""
    image = torch.randn(1, 2, 40, 80) * 0.1 + 1000
    image[0, 1, 0, 0] = -1e4
    result = triton_norm_act(image, 2, None, None, None, 0.0)[0]
    compare([result], [written_out(image.double(), 2, None, None, None, 0.0)], 1e-4, "far from zero")


def repeats() -> None:
    image, upstream = image_of((2, 5, 30, 40), torch.float32, True), torch.randn(2, 5, 30, 40)
    first, second = (
        outcome(lambda x: triton_norm_act(x, 5, None, None, 0.1, 1e-5)[0], [image], upstream) for _ in range(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def losses() -> None:
    for shape in [(2, 2, 5, 6, 7), (1, 3, 9, 4), (2, 14, 6, 5, 3), (1, 128, 3, 3), (2, 4, 80, 60)]:
        for last, dtype, kind in [
            (False, torch.float32, torch.uint8),
            (True, torch.float32, torch.int64),
            (True, torch.bfloat16, torch.int32),
            (False, torch.float16, torch.float32),
        ]:
            for surprised in (False, True):
                for ignored in (None, 1, 99 if shape[1] < 99 else 127):  # a class, and a value beyond them
                    loss(image_of(shape, dtype, last), kind, surprised, ignored)


def loss(scores: Tensor, kind: torch.dtype, surprised: bool, ignored: int | None = None) -> None:
    label = torch.randint(0, scores.shape[1], (len(scores), 1, *scores.shape[2:])).to(kind)
    if ignored is not None:
        label[torch.rand(label.shape) < 0.4] = ignored
    factors = normal(3, *scores.shape[:2])

    def whole(counted: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        def call(scores: Tensor) -> Tensor:
            hit, predicted, labelled, surprise = counted(scores)
            # What has no gradient is compared, too.
            parts = [hit, predicted, *([surprise] if surprised else [])]
            kept.append(torch.stack([*parts, labelled]).detach())
            return sum((part.double() * factor).sum() for part, factor in zip(parts, factors, strict=False))

        return call

    kept: list[Tensor] = []
    one = torch.ones((), dtype=torch.float64)
    options = {"surprised": surprised, "ignore_index": ignored}
    result = outcome(whole(lambda each: triton_counts(each, label, **options)), [scores], one)  # type: ignore[arg-type]
    wanted = outcome(whole(lambda each: _SoftCounts.apply(each, label, surprised, ignored)), [scores.double()], one)
    assert result[1].dtype == scores.dtype
    assert result[1].stride() == scores.stride()
    name = f"loss {tuple(scores.shape)} {scores.dtype} {kind} surprised={surprised} {ignored}"
    compare([kept[0]], [kept[1]], 1e-5, name)
    compare(result[1:], wanted[1:], TOLERANCE[scores.dtype], name)


def wrong_label() -> None:
    counts = triton_counts(torch.randn(1, 3, 9, 4), torch.full((1, 1, 9, 4), 3), surprised=False)
    assert counts[1] is not None
    assert counts[1].isnan().all()


def columns() -> None:
    for rows, width, more in ((1, 1, 0), (5000, 3, 4), (130, 48, 32), (7, 320, 320), (4097, 33, 1)):
        wide = torch.randn(rows, width + more).to(torch.bfloat16)
        for source in (wide[:, more:], wide[:, :width]):
            target = torch.full((rows, width + 2), torch.nan, dtype=torch.bfloat16)
            copy_columns(source, target[:, 1 : width + 1])
            assert torch.equal(target[:, 1:-1], source)
            assert target[:, [0, -1]].isnan().all()


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
