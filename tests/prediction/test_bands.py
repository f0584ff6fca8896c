"""Volumes in bands against volumes as a whole, and the scores that either holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.config.schema import Triple
from hasten.prediction.canvas import Canvas
from hasten.prediction.infer import Inference, infer_on_grid
from hasten.prediction.regrid import RegridSink
from hasten.prediction.windows import Windows, bands

CPU = torch.device("cpu")


def make(**given: Any) -> Inference:
    base: dict[str, Any] = {
        "window": (6, 7, 8), "divisor": (1, 1, 1), "whole_up_to": 0, "overlap": 0.5, "batch_size": 4,
        "precision": "fp32", "channels_last": False, "spatial_dims": 3, "device": CPU, "classes": 3,
    }  # fmt: skip
    return Inference(**{**base, **given})


class Sharp(nn.Module):
    """Whole numbers, whose sums with weights of 1 are the same in any order."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Conv3d(1, classes, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return (8 * self.inner(image)).round()


def volume_of(shape: Triple) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(3))


sides = st.integers(1, 30)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(sides, sides, sides),
    window=st.tuples(*[st.integers(2, 9)] * 3),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 0.7]),
    budget=st.sampled_from([0, 2000, 20000, 60000]),
    halo=st.integers(0, 1),
)
def test_bands_cover_every_voxel_once(shape: Triple, window: Triple, overlap: float, budget: int, halo: int) -> None:
    how = Windows(window=window, overlap=(overlap,) * 3, batch_size=1, device=CPU)
    seen = torch.zeros(shape)
    for box in bands(shape, how, 3, budget, halo=halo):
        assert all(0 <= part.start < part.stop <= side for part, side in zip(box, shape, strict=True))
        seen[box] += 1
    assert bool((seen == 1).all())


@settings(max_examples=8, deadline=None)
@given(
    shape=st.tuples(sides, sides, sides),
    new_shape=st.one_of(st.none(), st.tuples(sides, sides, sides)),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 0.7]),
    budget=st.sampled_from([0, 5000, 20000]),
    nearest=st.sampled_from([None, 0, 1, 2]),
    overlapping=st.booleans(),
)
def test_labels_are_those_of_one_band(
    shape: Triple, new_shape: Triple | None, overlap: float, budget: int, nearest: int | None, overlapping: bool
) -> None:
    network, volume = Sharp(3), volume_of(shape)
    results = []
    for sums_bytes in (10**9, budget):
        how = make(overlap=overlap, sums_bytes=sums_bytes, mode="constant", overlapping=overlapping)
        results.append(infer_on_grid(network, volume, new_shape or shape, how, nearest=nearest))
    assert torch.equal(*results)


def test_where_a_grid_takes_too_much_memory_it_is_begun_again_on_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    volume, decide, calls = volume_of((20, 18, 16)), RegridSink._decide_slab, 0

    def failing(self: RegridSink, *given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        decide(self, *given)

    expected = infer_on_grid(Sharp(3), volume, (25, 20, 10), make(mode="constant"))
    monkeypatch.setattr(RegridSink, "_decide_slab", failing)
    actual = infer_on_grid(Sharp(3), volume, (25, 20, 10), make(mode="constant", device=torch.device("cpu:0")))
    assert "gathered in host memory" in caplog.text
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(("new_shape", "classes"), [((48, 64, 64), 20), ((60, 80, 72), 5)])
def test_the_scores_held_stay_within_the_budget(
    classes: int, new_shape: Triple, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, budget, most, windows = (48, 64, 64), 1_500_000, 0, 0
    sinks: list[RegridSink] = []
    add, begin = Canvas.add, RegridSink.__init__

    def kept(self: RegridSink, *args: Any, **also: Any) -> None:
        sinks.append(self)
        begin(self, *args, **also)

    def watched(self: Canvas, *args: Any) -> None:
        nonlocal most, windows
        windows += 1
        add(self, *args)
        cells = sum(sums.numel() for sums in self.cells.values())
        layers = (layer for sink in sinks for layer in sink._layers.values())
        waiting = sum(piece.scores.numel() for layer in layers for piece in layer.pieces)
        most = max(most, 4 * (cells + waiting))

    monkeypatch.setattr(Canvas, "add", watched)
    monkeypatch.setattr(RegridSink, "__init__", kept)
    counts = {}
    for size in (10**9, budget):
        most, windows = 0, 0
        how = make(window=(16, 16, 16), sums_bytes=size, classes=classes, batch_size=1)
        infer_on_grid(nn.Conv3d(1, classes, 1), volume_of(shape), new_shape, how)
        counts[size] = most, windows
    assert counts[budget][0] <= budget
    assert counts[10**9][0] <= 4 * classes * 17 * 64 * 64 * 2
    assert (counts[budget][1] > counts[10**9][1]) == (counts[10**9][0] > budget)


def test_one_band_where_it_fits_or_the_classes_are_unknown() -> None:
    how = Windows(window=(16, 16, 16), overlap=(0.5,) * 3, batch_size=1, device=CPU)
    whole = [(slice(0, 40), slice(0, 50), slice(0, 60))]
    assert bands((40, 50, 60), how, 3, 10**9, halo=1) == whole
    assert bands((40, 50, 60), how, 0, 1, halo=1) == whole
    assert len(bands((40, 50, 60), how, 3, 100_000, halo=0)) > 1
