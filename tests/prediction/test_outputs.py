from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from hasten.prediction.model import probability_writer
from hasten.prediction.regrid import RegridSink
from hasten.prepare.types import Geometry

SHAPES = st.tuples(*[st.integers(1, 6)] * 3)


def geometry(shape: Any, new_shape: Any) -> Geometry:
    """A box that begins at (1, 0, 2) of a file whose axes are (W, D, H) and of which one runs backwards."""
    depth, height, width = (side + gap for side, gap in zip(new_shape, (1, 0, 3), strict=True))
    return Geometry(
        source_shape=(width, depth, height), source_affine=tuple(map(tuple, np.eye(4))), permute=(1, 2, 0),
        flip=(False, True, False), crop_start=(1, 0, 2), crop_shape=new_shape, spacing=(1, 1, 1), shape=shape,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHAPES, st.integers(0, 2), st.sampled_from([0.0, 1e-4, 3.0]), st.booleans(), st.integers(0, 99))
def test_all_scores_at_once_are_the_reference(
    shape: Any, new_shape: Any, axis: int, spread: float, overlapping: bool, seed: int
) -> None:
    """Also where float16 can't tell the classes apart."""
    scores = spread * torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed))
    where = geometry(shape, new_shape)
    target = np.zeros((3, *where.source_shape), np.float16)
    activation = torch.sigmoid if overlapping else (lambda scores: scores.softmax(0))
    model: Any = SimpleNamespace(regions=("a",) if overlapping else (), activation=activation)
    sink = RegridSink(
        shape,
        new_shape,
        torch.device("cpu"),
        axis=axis,
        overlapping=overlapping,
        planes=probability_writer(target, where, model),
    )
    cut = max(1, shape[axis] // 2)  # two layers
    for part in (slice(0, cut), slice(cut, shape[axis])):
        if part.start < part.stop:
            slot: Any = tuple(part if each == axis else slice(0, shape[each]) for each in range(3))
            sink.take(slot, scores[(slice(None), *slot)], lambda: torch.ones(()))
    decided = sink.result().numpy()
    turned = target.transpose(0, 2, 3, 1)[:, :, ::-1]
    box = turned[:, 1:, :, 2:-1]
    if overlapping:
        assert np.array_equal(box > 0.5, decided)
    else:
        assert np.array_equal(box.argmax(0), decided)
        outside = np.ones(turned.shape[1:], bool)
        outside[1:, :, 2:-1] = False
        assert (turned[:, outside] == np.array([[1], [0], [0]])).all()
    dense = interpolate(scores[None], size=new_shape, mode="trilinear", align_corners=False)[0]
    np.testing.assert_allclose(box, activation(dense).numpy(), atol=2e-3)
