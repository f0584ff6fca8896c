from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.prediction.blend import cover, make_axis, weight_map, window_starts

sides = st.integers(1, 60)
shares = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 0.99])


@given(sides, st.integers(1, 40), shares)
@settings(deadline=None)
def test_starts_are_monais(side: int, window: int, overlap: float) -> None:
    from monai.data.utils import dense_patch_slices
    from monai.inferers.utils import _get_scan_interval

    size = max(side, window)
    interval = _get_scan_interval((size,), (window,), 1, (overlap,))
    expected = [place[0].start for place in dense_patch_slices((size,), (window,), interval)]
    assert window_starts(size, window, overlap) == expected


@given(sides, st.integers(1, 40), shares)
@settings(deadline=None)
def test_cells_tile_the_volume_and_parts_tile_the_windows(side: int, window: int, overlap: float) -> None:
    axis = make_axis(side, window, overlap)
    assert axis.size == max(side, window)
    assert axis.cells[0].start == axis.before
    assert axis.cells[-1].stop == axis.before + side
    assert all(one.stop == two.start for one, two in pairwise(axis.cells))
    assert all(cell.start < cell.stop for cell in axis.cells)
    for start, parts in zip(axis.starts, axis.parts, strict=True):
        seen = [start + place for part in parts for place in range(part.in_window.start, part.in_window.stop)]
        assert seen == [place for place in range(start, start + window) if 0 <= place - axis.before < side]
        for part in parts:
            cell = axis.cells[part.cell]
            assert start + part.in_window.start == cell.start + part.in_cell.start
            assert part.in_window.stop - part.in_window.start == part.in_cell.stop - part.in_cell.start
            assert part.whole == (part.in_cell == slice(0, cell.stop - cell.start))


@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_windows_cover_cells_whole_at_the_usual_overlaps(overlap: float) -> None:
    axis = make_axis(96 + 5 * int(96 * (1 - overlap)), 96, overlap)
    assert all(part.whole for parts in axis.parts for part in parts)


@pytest.mark.parametrize("window", [(8, 16, 12), (1, 9, 32), (96, 20, 7)])
@pytest.mark.parametrize("sigma", [(0.125, 0.125, 0.125), (0.5, 0.25, 0.1), (0.05, 0.05, 0.05)])
def test_the_weights_are_monais(window: tuple[int, int, int], sigma: tuple[float, float, float]) -> None:
    from monai.data.utils import compute_importance_map

    expected = compute_importance_map(window, mode="gaussian", sigma_scale=sigma)
    actual = weight_map(window, "gaussian", sigma, torch.device("cpu"))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["constant", "gaussian"])
@pytest.mark.parametrize("shape", [(11, 30, 9), (1, 17, 23), (5, 6, 40)])
@pytest.mark.parametrize("overlap", [0.1, 0.5, 0.8])
def test_cover_is_the_sum_of_all_windows(mode: str, shape: tuple[int, int, int], overlap: float) -> None:
    window = (min(6, shape[0]), 8, 8)
    axes = tuple(make_axis(side, span, overlap) for side, span in zip(shape, window, strict=True))
    weight = weight_map(window, mode, (0.125, 0.125, 0.125), torch.device("cpu"))  # type: ignore[arg-type]
    total = torch.zeros([axis.size for axis in axes])
    for d, h, w in product(*(axis.starts for axis in axes)):
        total[d : d + window[0], h : h + window[1], w : w + window[2]] += weight
    for cell in product(*(range(len(axis.cells)) for axis in axes)):
        slots = tuple(axis.cells[number] for axis, number in zip(axes, cell, strict=True))
        torch.testing.assert_close(cover(axes, cell, weight), total[slots])  # type: ignore[arg-type]
