from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.cases.slide import open_slide
from hasten.cases.slide.tissue import cell_shares, grid_of, otsu, tissue_of
from hasten.phantoms.slides import write_pyramid

filters = pytest.importorskip("skimage.filters")


def test_the_threshold_is_otsus() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(40, 10, 4000), rng.normal(150, 20, 1500)]).clip(0, 255).astype(np.uint8)
    upper = values > otsu(values)
    np.testing.assert_array_equal(upper, values > filters.threshold_otsu(values))


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_glass_alone_has_no_tissue(tmp_path: Path, noise: float) -> None:
    glass = np.random.default_rng(0).normal(244, noise, (512, 512, 3)).clip(0, 255).astype(np.uint8)
    write_pyramid(tmp_path / "glass.tif", glass, 2, 1.0, "none")
    with open_slide(tmp_path / "glass.tif") as slide, pytest.raises(ValueError, match=r"glass.tif: no tissue found on"):
        tissue_of(slide)


def test_shares_of_cells_are_means() -> None:
    mask = np.random.default_rng(0).random((24, 36)) < 0.3
    actual = cell_shares(mask, 2.0, (6, 9), 8.0)
    expected = mask.reshape(6, 4, 9, 4).mean((1, 3))
    np.testing.assert_allclose(actual, expected)
    middle = cell_shares(mask, 2.0, (6, 9), 8.0, size=4.0)
    np.testing.assert_allclose(middle, mask.reshape(6, 4, 9, 4)[:, 1:3, :, 1:3].mean((1, 3)))


def test_the_middle_of_a_tile_is_that_of_its_cell(slides: Path) -> None:
    with open_slide(slides / "slides" / "phantom_000.tif") as slide:
        tissue = tissue_of(slide, downsample=4)
        grid = grid_of(slide, tissue, level=1, tile=48, stride=16)
        assert grid.shape == (20, 16)
        assert grid.cell == 32
        for number in (0, len(grid.cells) - 1):
            y, x = grid.corner(number)
            assert [y + 24, x + 24] == (grid.cells[number] * 16 + 8).tolist()
        share = cell_shares(tissue.mask, 4.0, grid.shape, 32.0)
        np.testing.assert_array_equal(np.argwhere(share >= 0.1), grid.cells)
        with pytest.raises(ValueError, match="no level 7; its levels are"):
            grid_of(slide, tissue, level=7, tile=48, stride=16)
