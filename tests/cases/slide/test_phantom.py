from __future__ import annotations

from pathlib import Path

from hasten.phantoms.slides import write_phantom_slides


def test_files_are_the_same_again(slides: Path, tmp_path: Path) -> None:
    again = write_phantom_slides(
        tmp_path, num_cases=3, shape=(1, 640, 512), num_levels=3, compression="deflate", seed=3
    )
    for name in ("slides/phantom_001.tif", "masks/phantom_001.tif", "slides.csv"):
        assert (again / name).read_bytes() == (slides / name).read_bytes()
