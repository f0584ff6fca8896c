from __future__ import annotations

import monai.transforms.utils
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hasten.prepare.foreground import foreground_box

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))


@given(SHAPES, st.floats(0, 0.3), st.sampled_from(["u1", "i2", "f4"]), st.integers(0, 2**32 - 1))
def test_matches_monai(shape: tuple[int, int, int, int], density: float, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    array = (rng.integers(1, 9, shape) * (rng.random(shape) < density)).astype(dtype)
    box = foreground_box(array, [4.0] * shape[0])
    start, stop = monai.transforms.utils.generate_spatial_bounding_box(array, select_fn=lambda x: x > 4)
    if (array > 4).any():
        assert ([s.start for s in box], [s.stop for s in box]) == ([int(v) for v in start], [int(v) for v in stop])
    else:
        assert box == tuple(slice(0, n) for n in shape[1:])


def test_channels_may_have_a_threshold_or_their_minimum() -> None:
    array = np.zeros((2, 6, 7, 8), np.int16)
    array[0, 2, 3, 4] = 5
    array[0, 0, 0, 0] = 3
    array[1, 4, 3, 1] = 1
    assert foreground_box(array, [4.0, None]) == (slice(2, 5), slice(3, 4), slice(1, 5))
