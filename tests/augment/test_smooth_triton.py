"""The Triton kernel that filters along an axis, in Triton's interpreter, against torch's operations.

The interpreter is chosen when Triton is imported: `TRITON_INTERPRET=1 pytest tests/augment/test_smooth_triton.py`.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.augment.smooth import _along

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 13), min_size=2, max_size=3), st.integers(1, 3), st.integers(1, 3), st.booleans(),
    st.integers(0, 5), st.integers(0, 2), st.sampled_from(("reflect", "constant")), st.integers(0, 2**31),
)  # fmt: skip
def test_the_kernel_filters_as_torch_does(
    sides: list[int], batch: int, channels: int, same: bool, radius: int, axis: int, mode: str, seed: int
) -> None:
    from hasten.augment.smooth_triton import along

    generator = torch.Generator().manual_seed(seed)
    axis = 2 + axis % len(sides)
    radius = min(radius, sides[axis - 2] - 1)
    image = torch.randn(batch, channels, *sides, generator=generator)
    weight = torch.randn(batch, 1 if same else channels, 2 * radius + 1, generator=generator)
    torch.testing.assert_close(
        along(image, weight, axis, mode), _along(image, weight, axis, mode), rtol=1e-5, atol=1e-5
    )
