from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.cases.slide import open_slide
from hasten.cases.slide.phantom import make_phantom_slide, write_phantom_slides


def test_a_slide_is_a_function_of_seed_and_index() -> None:
    first, lesion = make_phantom_slide(1, size=(256, 320), seed=5)
    again, _ = make_phantom_slide(1, size=(256, 320), seed=5)
    other, _ = make_phantom_slide(1, size=(256, 320), seed=6)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert first.shape == (256, 320, 3)
    assert lesion.any()


def test_lesions_are_darker_and_bluer_than_other_tissue() -> None:
    image, lesion = make_phantom_slide(0, size=(512, 512), seed=3)
    tissue = image.min(-1) < 215
    inside, outside = image[lesion > 0].mean(0), image[tissue & (lesion == 0)].mean(0)
    assert inside.sum() < outside.sum() - 60
    assert inside[2] > inside[0]


def test_every_fourth_slide_has_no_lesion() -> None:
    assert [make_phantom_slide(index, size=(256, 256))[1].any() for index in range(4)] == [True, True, True, False]


def test_files_are_the_same_again(slides: Path, tmp_path: Path) -> None:
    again = write_phantom_slides(tmp_path, num_slides=3, size=(640, 512), num_levels=3, compression="deflate", seed=3)
    for name in ("slides/phantom_001.tif", "masks/phantom_001.tif", "slides.csv"):
        assert (again / name).read_bytes() == (slides / name).read_bytes()


def test_coarser_levels_are_means(slides: Path) -> None:
    with open_slide(slides / "slides" / "phantom_000.tif") as slide:
        fine, coarse = slide.read_level(0).astype(int), slide.read_level(1)
    np.testing.assert_array_equal((fine.reshape(320, 2, 256, 2, 3).sum((1, 3)) + 2) // 4, coarse)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (100, 512)}, "needs 256 or more"),
        ({"num_slides": 0}, "needs at least 1"),
        ({"compression": "lzw"}, "compression 'lzw'; use one of jpeg, deflate, none"),
    ],
    ids=["size", "number", "compression"],
)
def test_impossible_phantoms_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_phantom_slides(tmp_path, **{"num_slides": 1, **options})  # type: ignore[arg-type]
