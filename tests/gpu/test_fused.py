"""The fused kernels of nnU-Net's chain on a card, against torch's operations there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hasten.augment.fused import KINDS, render_fused
from hasten.augment.make_program import CaseSource, make_segment
from hasten.augment.presets import nnunet_chain
from hasten.augment.program import Segment
from hasten.augment.render import render
from hasten.config.schema import Triple
from hasten.kernels.use import triton_runs
from tests.augment.stores import random_store
from tests.gpu.graphs import captured


@pytest.fixture(autouse=True)
def _triton() -> None:
    if not triton_runs(torch.empty(1, device="cuda")):
        pytest.skip("needs Triton")


def segment_of(patch: Triple, channels: int, prob: float) -> Segment:
    """Of 8 samples, which draw each operation with this probability."""
    dims = 2 if patch[0] == 1 else 3
    chain = nnunet_chain(patch, num_channels=channels, spatial_dims=dims)
    ops = tuple(replace(op, prob=prob) if type(op) in KINDS else op for op in chain.ops)
    depth, height, width = patch
    store = random_store([patch, (depth, height + 9, width - 5)], num_channels=channels, dtype="float16").to("cuda")
    cases = CaseSource(store=replace(store, spatial_dims=dims))
    return make_segment(replace(chain, ops=ops), cases, batch_size=8, device="cuda", fuse=True)


@pytest.mark.parametrize("prob", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("patch", [(96, 96, 96), (40, 57, 31), (1, 256, 190)])
def test_the_batch_is_that_of_torchs_operations(patch: Triple, channels: int, prob: float) -> None:
    segment = segment_of(patch, channels, prob)
    assert segment.renderer is render_fused
    for step in range(3):
        found = segment(step)
        wanted = replace(segment, renderer=render)(step)
        assert torch.equal(found["label"], wanted["label"])
        apart = (found["image"] - wanted["image"]).abs()
        # Low resolution may take another voxel where two are as near.
        assert (apart > 1e-3).float().mean() < 1e-3


def test_a_graph_of_fused_kernels_makes_the_batch_of_each_step() -> None:
    segment = segment_of((32, 32, 32), 1, 0.5)
    sample = torch.arange(8, device="cuda")
    with torch.no_grad():
        graph, batch = captured(lambda: segment.rendered(segment.drawn(sample)))
    for step in (0, 1, 7):
        torch.arange(8 * step, 8 * step + 8, out=sample)
        graph.replay()
        torch.testing.assert_close(batch["image"], segment(step)["image"], rtol=1e-5, atol=1e-5)
