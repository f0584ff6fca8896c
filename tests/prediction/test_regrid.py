"""Label maps decided from scores on another grid, against all scores interpolated there."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from hasten.config.schema import Triple
from hasten.prediction import regrid
from hasten.prediction.regrid import RegridSink, thick_axis
from hasten.prepare.resample import nearest_index

CPU = torch.device("cpu")


def smooth_scores(classes: int, shape: Triple, seed: int) -> Tensor:
    """(K, D, H, W) scores with regions of one class, as a network gives them."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, classes, *(max(1, side // 4) for side in shape), generator=generator)
    noise = 0.05 * torch.randn(classes, *shape, generator=generator)
    return interpolate(coarse, size=shape, mode="trilinear")[0] + noise


def reference(scores: Tensor, new_shape: Triple, nearest: int | None) -> Tensor:
    """(K, *new_shape) by interpolating every score."""
    if nearest is not None:
        index = torch.from_numpy(nearest_index(scores.shape[1 + nearest], new_shape[nearest]))
        scores = scores.index_select(1 + nearest, index)
    return interpolate(scores[None].double(), size=new_shape, mode="trilinear", align_corners=False)[0]


def handed_over(scores: Tensor, sink: RegridSink, cuts: list[list[int]], order: np.random.Generator) -> Tensor:
    """The sink's result from cells in any order, as sums of windows whose weights differ."""
    spans = [list(pairwise(each)) for each in cuts]
    cells = list(product(*spans))
    for number in order.permutation(len(cells)):
        slot = tuple(slice(*span) for span in cells[number])
        part = scores[(slice(None), *slot)]
        weights = 0.5 + torch.rand(part.shape[1:])
        sink.take(slot, part * weights, lambda weights=weights: weights)  # type: ignore[arg-type,misc]
    return sink.result()


sides = st.integers(1, 17)


@settings(max_examples=100, deadline=None)
@given(
    shape=st.tuples(sides, sides, sides),
    new_shape=st.tuples(sides, sides, sides),
    classes=st.sampled_from([2, 5, 300]),
    axis=st.integers(0, 2),
    nearest=st.sampled_from([None, 0, 1, 2]),
    overlapping=st.booleans(),
    slab=st.sampled_from([1, 300, 1 << 19]),
    seed=st.integers(0, 99),
)
def test_it_decides_as_all_interpolated_scores_do(
    shape: Triple, new_shape: Triple, classes: int, axis: int, nearest: int | None, overlapping: bool, slab: int,
    seed: int,
) -> None:  # fmt: skip
    classes = min(classes, 5) if overlapping else classes
    scores = smooth_scores(classes, shape, seed)
    order = np.random.default_rng(seed)
    cuts = [sorted({0, side, *map(int, order.integers(0, side + 1, 2))}) for side in shape]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regrid, "_SLAB_VOXELS", slab)
        sink = RegridSink(shape, new_shape, CPU, axis=axis, nearest=nearest, overlapping=overlapping)
        actual = handed_over(scores, sink, cuts, order)
    expected = reference(scores, new_shape, nearest)
    if overlapping:
        assert actual.shape == expected.shape
        assert actual.dtype == torch.bool
        assert bool((actual == (expected > 0))[expected.abs() > 1e-5].all())
        return
    assert actual.shape == new_shape
    assert actual.dtype == (torch.uint8 if classes < 256 else torch.int16)
    # Rounding decides where the two highest classes are alike.
    best = expected.topk(2, dim=0).values
    assert bool((actual == expected.argmax(0))[best[0] - best[1] > 1e-5].all())


SPACINGS: list[tuple[list[Any], int | None]] = [
    ([(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], None),
    ([(3.1, 1.0, 1.0), (1.0, 1.0, 1.0)], 0),
    ([(3.0, 1.0, 1.0), (1.0, 1.0, 1.0)], None),
    ([(1.0, 1.0, 1.0), (1.0, 5.0, 1.0)], 1),
    ([(4.0, 4.0, 1.0), (5.0, 1.0, 1.0)], None),
]


@pytest.mark.parametrize(("spacings", "axis"), SPACINGS)
def test_thick_slices_are_those_of_nnunet(spacings: list[Any], axis: int | None) -> None:
    assert thick_axis(*spacings) == axis
