"""The Triton kernels that draw numbers and read cases, on a card, against torch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.maps import Map
from hasten.augment.op import op_key
from hasten.augment.read import PackedCases, coordinates_of, read, read_mapped
from hasten.kernels.use import triton_runs
from hasten.sample import random
from tests.augment.stores import random_store, segment_of
from tests.gpu.graphs import captured

SHAPES = [(20, 24, 28), (32, 16, 24), (1, 40, 33)]
EVERYTHING: dict[str, Any] = {
    "foreground_prob": 0.5,
    "flip_prob": (0.5, 0.5, 0.5),
    "affine_prob": 0.5,
    **{f"{name}_prob": 0.5 for name in ("brightness", "contrast", "gamma", "noise")},
}


@pytest.fixture(autouse=True)
def _triton() -> None:
    if not triton_runs(torch.empty(1, device="cuda")):
        pytest.skip("needs Triton")


def reading(dims: int, dtype: torch.dtype, channels: int) -> tuple[Any, ...]:
    """Arguments of `read_mapped`: three samples, one of them flipped and shifted by whole voxels only."""
    generator = torch.Generator().manual_seed(0)
    shapes = SHAPES if dims == 3 else [(1, *shape[1:]) for shape in SHAPES]
    shape = torch.tensor(shapes)
    voxels = shape.prod(1)
    values = (torch.randn(int(voxels.sum()) * channels, generator=generator) * 20).abs()
    linear = torch.eye(3) + 0.2 * torch.randn(3, 3, 3, generator=generator)
    linear[0] = torch.diag(torch.tensor([1.0, -1.0, 1.0]))
    shift = torch.randn(3, 3, generator=generator)
    shift[0] = torch.tensor([0.0, 2.0, -3.0])
    out = (1 if dims == 2 else 18, 17, 30)
    cases = PackedCases(values.to(dtype).cuda(), shape.cuda(), (voxels.cumsum(0) - voxels).cuda(), channels)
    start = torch.tensor([[2, -3, 5], [0, 4, -2], [-1, 1, 1]]) * torch.tensor([dims == 3, 1, 1])
    place = Map(linear.cuda(), shift.cuda())
    return cases, torch.tensor([2, 0, 1]).cuda(), start.cuda(), place, (1 if dims == 2 else 16, 19, 28), out


def by_torch(cases: PackedCases, case: Tensor, start: Tensor, place: Map, size: Any, out: Any, **how: Any) -> Tensor:
    return read(cases, case, start, coordinates_of(place, size, out), **how)


@pytest.mark.parametrize("padding_mode", ["", "zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("dims", [2, 3])
def test_the_kernel_reads_what_torch_reads(dims: int, mode: str, padding_mode: str) -> None:
    how = {"mode": mode, "padding_mode": padding_mode, "spatial_dims": dims}
    for dtype in (torch.float16, torch.float32, torch.bfloat16, torch.uint8, torch.int16):
        for channels in (1, 3):
            given = reading(dims, dtype, channels)
            result, wanted = read_mapped(*given, **how), by_torch(*given, **how)
            assert result.dtype == wanted.dtype
            if mode == "bilinear":
                torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
            # A coordinate within rounding of a voxel's border may take either neighbour.
            assert (result != wanted).float().mean() < 1e-3 or mode == "bilinear"


def test_random_numbers_are_those_of_the_host() -> None:
    key = random.sample_key(torch.tensor(2**40 + 7), torch.tensor([0, 1, 2**33 + 5]))
    there = key.cuda()
    sample = torch.tensor([0, 1, 2**33 + 5]).cuda()
    assert torch.equal(random.sample_key(torch.tensor(2**40 + 7).cuda(), sample).cpu(), key)
    assert torch.equal(random.hash32(there).cpu(), random.hash32(key))
    assert torch.equal(op_key(there, 3).cpu(), op_key(key, 3))
    for count in (1, 3, 40, 5000):
        assert torch.equal(random.random_words(there, 9, count).cpu(), random.random_words(key, 9, count))
        assert torch.equal(random.uniform(there, 9, count).cpu(), random.uniform(key, 9, count))
        result = random.uniform_in(there, 9, -0.3, 1.1, count).cpu()
        assert torch.equal(result, random.uniform_in(key, 9, -0.3, 1.1, count))
        torch.testing.assert_close(random.normal(there, 9, count).cpu(), random.normal(key, 9, count))


def test_a_batch_in_a_cuda_graph_is_the_hosts() -> None:
    store = random_store(SHAPES[:2], dtype="float16")
    host = segment_of(store, (16, 16, 16), seed=3, **EVERYTHING)
    device = segment_of(store.to("cuda"), (16, 16, 16), seed=3, binding={"device": "cuda"}, **EVERYTHING)
    sample = torch.arange(4, device="cuda")
    with torch.no_grad():
        graph, batch = captured(lambda: device.rendered(device.drawn(sample)))
    for step in (0, 1, 7):
        torch.arange(4 * step, 4 * step + 4, out=sample)
        graph.replay()
        wanted = host(step)
        torch.testing.assert_close(batch["image"].cpu(), wanted["image"], rtol=1e-4, atol=1e-4)
        assert (batch["label"].cpu() != wanted["label"]).float().mean() < 1e-3


def test_a_compiled_renderer_takes_torchs_operations() -> None:
    given = reading(3, torch.float16, 1)
    how = {"mode": "bilinear", "padding_mode": "zeros", "spatial_dims": 3}
    compiled = torch.compile(lambda: read_mapped(*given, **how), fullgraph=True)
    torch.testing.assert_close(compiled(), read_mapped(*given, **how), rtol=1e-4, atol=1e-4)
