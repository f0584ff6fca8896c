"""The Triton kernel that reads cases, in Triton's interpreter, against torch's operations.

The interpreter is chosen when Triton is imported: `TRITON_INTERPRET=1 pytest tests/augment/test_read.py`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hasten.augment.make_program import CaseSource, make_segment
from hasten.augment.maps import Map
from hasten.augment.presets import default_chain, nnunet_chain
from hasten.augment.read import PackedCases, coordinates_of, read, read_mapped
from hasten.augment.render import render
from hasten.config.schema import SampleConfig
from tests.augment.stores import random_store

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int16, torch.int64, torch.bool)


def cases_of(
    shapes: list[tuple[int, int, int]], channels: int, dtype: torch.dtype, generator: torch.Generator
) -> PackedCases:
    shape = torch.tensor(shapes)
    voxels = shape.prod(1)
    values = torch.randn(int(voxels.sum()) * channels, generator=generator) * 20
    stored = values > 0 if dtype == torch.bool else values.abs().to(dtype)
    return PackedCases(stored, shape, voxels.cumsum(0) - voxels, channels)


def some_map(batch: int, kind: str, generator: torch.Generator) -> Map:
    """Anything, or whole voxels only: flips and shifts, which must not lie within rounding of a half."""
    if kind == "whole":
        sign = torch.randint(0, 2, (batch, 3), generator=generator) * 2.0 - 1
        return Map(torch.diag_embed(sign), torch.randint(-2, 3, (batch, 3), generator=generator).float())
    linear = torch.eye(3) + 0.4 * torch.randn(batch, 3, 3, generator=generator)
    return Map(linear, torch.randn(batch, 3, generator=generator) * 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_kernel_reads_what_torch_reads(data: Any) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    dims = data.draw(st.sampled_from((2, 3)))
    side = st.integers(1, 7)

    def sides() -> tuple[int, int, int]:
        return (1 if dims == 2 else data.draw(side), data.draw(side), data.draw(side))

    cases = cases_of(
        [sides() for _ in range(3)], data.draw(st.integers(1, 3)), data.draw(st.sampled_from(DTYPES)), generator
    )
    batch, size, out = data.draw(st.integers(1, 3)), sides(), sides()
    case = torch.randint(0, 3, (batch,), generator=generator)
    start = torch.randint(-3, 4, (batch, 3), generator=generator)
    place = some_map(batch, data.draw(st.sampled_from(("whole", "any"))), generator)
    if dims == 2:
        start[:, 0] = 0
    how = {
        "mode": data.draw(st.sampled_from(("bilinear", "nearest"))),
        "padding_mode": data.draw(st.sampled_from(("", "zeros", "border", "reflection"))),
        "spatial_dims": dims,
    }
    result = by_kernel(cases, case, start, place, size, out, **how)
    wanted = read(cases, case, start, coordinates_of(place, size, out), **how)
    assert result.dtype == wanted.dtype
    if how["mode"] == "nearest":
        assert torch.equal(result, wanted)
    else:
        torch.testing.assert_close(result, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(read_mapped(cases, case, start, place, size, out, **how), wanted)


def by_kernel(cases: PackedCases, *arguments: Any, **how: Any) -> Tensor:
    from hasten.augment.read_triton import read_by_kernel

    return read_by_kernel(*cases, *arguments, **how)


def test_a_voxel_without_weight_is_not_read() -> None:
    """Of whole-voxel maps each voxel is read once: a neighbour that is not finite does not leak in."""
    values = torch.arange(27.0)
    values[13] = float("inf")
    cases = PackedCases(values, torch.tensor([[3, 3, 3]]), torch.tensor([0]), 1)
    whole = Map(torch.diag_embed(torch.tensor([[1.0, -1.0, 1.0]])), torch.zeros(1, 3))
    how = {"mode": "bilinear", "padding_mode": "zeros", "spatial_dims": 3}
    result = by_kernel(
        cases, torch.tensor([0]), torch.zeros(1, 3, dtype=torch.int64), whole, (3, 3, 3), (3, 3, 3), **how
    )
    assert torch.equal(result[0, 0], values.view(3, 3, 3).flip(1))


@pytest.mark.parametrize("name", ["default", "nnunet"])
def test_a_batch_by_the_kernels_is_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = (8, 9, 10)
    config = SampleConfig(patch=patch, flip_prob=(0.5, 0.5, 0.5))
    chain = default_chain(config, patch=patch, spatial_dims=3) if name == "default" else nnunet_chain(patch)
    store = random_store([(10, 9, 13), (7, 11, 9)], dtype="float16")
    segment = make_segment(chain, CaseSource(store=store), batch_size=8)

    def made() -> tuple[Any, dict[str, Tensor]]:
        with torch.no_grad():
            draws = segment.drawn(torch.arange(8))
            return draws, render(segment.stages, segment.stored(), draws, 3)

    draws, wanted = made()
    for module in ("sample.random", "augment.read", "augment.smooth"):
        monkeypatch.setattr(f"hasten.{module}.triton_runs", lambda tensor: True)
    own, result = made()
    assert all(torch.equal(*pair) for pair in zip(tree_leaves(own), tree_leaves(draws), strict=True))
    assert torch.equal(result["label"], wanted["label"])
    torch.testing.assert_close(result["image"], wanted["image"], rtol=1e-4, atol=1e-4)
