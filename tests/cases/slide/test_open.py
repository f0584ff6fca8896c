from __future__ import annotations

import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hasten.cases.slide import open as opening
from hasten.cases.slide import open_slide
from hasten.cases.slide.open import BACKENDS, CucimReader, Level, installed
from hasten.phantoms.slides import make_phantom_slide, write_phantom_slides, write_pyramid

SIZE = (640, 512)


def skip_unless(backend: str) -> None:
    """Other tests may have loaded Horovod into this process, beside which cuCIM can't be."""
    if backend not in installed():
        pytest.skip(f"{backend} can't be used in this process")


@pytest.fixture(scope="session")
def level_0() -> np.ndarray:
    return make_phantom_slide(0, size=SIZE, seed=3)[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_pixels_that_were_written(slides: Path, level_0: np.ndarray, backend: str) -> None:
    """White outside, and the same where threads read at once."""
    skip_unless(backend)
    corners = [(number * 37 % 500, number * 91 % 400) for number in range(60)]
    with open_slide(slides / "slides" / "phantom_000.tif", backend) as slide, ThreadPoolExecutor(4) as pool:
        assert slide.backend == backend
        assert slide.levels == (Level(640, 512, 1.0), Level(320, 256, 2.0), Level(160, 128, 4.0))
        assert slide.mpp == pytest.approx(1.0, rel=1e-3)
        np.testing.assert_array_equal(slide.read_region(0, 70, 300, 200, 150), level_0[70:270, 300:450])
        np.testing.assert_array_equal(slide.read_level(0), level_0)
        across = slide.read_region(0, -30, 480, 100, 90)
        np.testing.assert_array_equal(across[30:, :32], level_0[:70, 480:])
        assert min(across[:30].min(), across[:, 32:].min(), slide.read_region(0, 5000, 5000, 8, 8).min()) == 255
        results = list(pool.map(lambda at: slide.read_region(0, *at, 64, 64), corners))
    for (y, x), tile in zip(corners, results, strict=True):
        np.testing.assert_array_equal(tile, level_0[y : y + 64, x : x + 64])


@pytest.mark.parametrize("backend", ["cucim", "openslide"])
def test_jpeg_levels_are_alike_in_all_backends(tmp_path: Path, level_0: np.ndarray, backend: str) -> None:
    skip_unless(backend)
    path = tmp_path / "slide.tif"
    write_pyramid(path, level_0, 3, 0.5, "jpeg")
    with open_slide(path, backend) as one, open_slide(path, "tifffile") as other:
        assert one.mpp == pytest.approx(0.5, rel=1e-3)
        for region in ((0, 11, 200, 300, 260), (1, 100, 30, 100, 100), (2, 0, 0, 160, 128)):
            np.testing.assert_array_equal(one.read_region(*region), other.read_region(*region))


def test_a_level_that_is_not_there_names_those_that_are(slides: Path) -> None:
    with open_slide(slides / "slides" / "phantom_000.tif", "tifffile") as slide:
        with pytest.raises(ValueError, match=r"phantom_000.tif: .*level 5; .* 0: 640 x 512, 1 um/pixel; 1"):
            slide.read_region(5, 0, 0, 8, 8)
        assert slide.level_of(2.05) == 1
        with pytest.raises(ValueError, match=r"has no level of 0.25 um/pixel; its levels are 0: 640 x 512"):
            slide.level_of(0.25)
        assert [slide.level_near(downsample) for downsample in (1, 2, 3.9, 4, 64)] == [0, 1, 2, 2, 2]
        slide.mpp = None
        with pytest.raises(ValueError, match="does not state the size of its pixels"):
            slide.level_of(1.0)


def test_cucim_is_asked_in_pixels_of_the_first_level(level_0: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in with cuCIM's names, which gives each pixel of a coarser level the colour of its corner."""
    levels = {"level_dimensions": ((512, 640), (256, 320)), "level_downsamples": (1.0, 2.0)}

    def region(location: tuple[int, int], size: tuple[int, int], level: int) -> np.ndarray:
        down, (x, y), (width, height) = 2**level, location, size
        return level_0[y : y + down * height : down, x : x + down * width : down]

    def image(bits: int = 8, channels: int = 3) -> Any:
        known = {"dtype": SimpleNamespace(bits=bits), "shape": [640, 512, channels], "resolutions": levels}
        calls = {"spacing_units": lambda: ["", "micrometer"], "spacing": lambda: [0.5, 0.5], "close": lambda: None}
        return SimpleNamespace(**known, **calls, read_region=region)

    made = [image(), image(bits=16), image(channels=4)]
    monkeypatch.setitem(sys.modules, "cucim", SimpleNamespace(CuImage=lambda path: made.pop(0)))
    reader = CucimReader(Path("slide.tif"))
    assert (reader.mpp, reader.levels[1]) == (0.5, Level(320, 256, 2.0))
    np.testing.assert_array_equal(reader.read(1, 10, 20, 50, 60), level_0[20:120:2, 40:160:2])
    for message in ("has values of 16 bits", "is not plain RGB"):
        with pytest.raises(ValueError, match=message):
            CucimReader(Path("slide.tif"))
    reader.close()


@pytest.mark.parametrize("share", [0.9, 0.5, 0.0005, 0.0])
def test_a_slide_cut_short_is_refused(slides: Path, tmp_path: Path, share: float) -> None:
    whole = (slides / "slides" / "phantom_000.tif").read_bytes()
    path = tmp_path / "short.tif"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"short.tif: is (no TIFF, or )?cut short"):
        open_slide(path)


def test_a_tile_that_is_damaged_names_place_and_backend(slides: Path, tmp_path: Path) -> None:
    import tifffile

    path = tmp_path / "damaged.tif"
    content = bytearray((slides / "slides" / "phantom_000.tif").read_bytes())
    with tifffile.TiffFile(slides / "slides" / "phantom_000.tif") as file:
        page = file.pages[0]
        at, size = page.dataoffsets[0], page.databytecounts[0]
    content[at : at + size] = b"\x55" * size
    path.write_bytes(content)
    with open_slide(path, "tifffile") as slide:
        slide.read_region(0, 300, 300, 64, 64)
        with pytest.raises(ValueError, match=r"damaged.tif: level 0 .*row 0, column 0 by tifffile"):
            slide.read_region(0, 0, 0, 64, 64)


def test_a_backend_that_is_not_installed_names_its_command(slides: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = slides / "slides" / "phantom_000.tif"
    find = importlib.util.find_spec
    hidden = {"cucim", "openslide"}
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: None if name in hidden else find(name))
    with pytest.raises(ValueError, match=r"openslide is not installed; pip install 'hasten\[wsi\]'"):
        open_slide(path, "openslide")
    with pytest.raises(ValueError, match=r"cucim is not installed; pip install --no-deps cucim"):
        open_slide(path, "cucim")
    with open_slide(path) as slide:
        assert slide.backend == "tifffile"


@pytest.mark.parametrize("compression", ["none", "deflate"])
def test_a_grey_slide_is_read_by_another_than_cucim(tmp_path: Path, compression: str) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (256, 300), dtype=np.uint8)
    write_pyramid(tmp_path / "grey.tif", grey, 1, 1.0, compression)  # type: ignore[arg-type]
    with open_slide(tmp_path / "grey.tif") as slide:
        assert slide.backend == "tifffile"
        np.testing.assert_array_equal(slide.read_level(0), np.repeat(grey[..., None], 3, 2))


def test_cucim_gives_the_same_in_a_process_of_its_own(slides: Path) -> None:
    if importlib.util.find_spec("cucim") is None:
        pytest.skip("cuCIM is not installed")
    code = (
        "import sys; import numpy as np; from hasten.cases.slide import open_slide\n"
        "one, other = (open_slide(sys.argv[1], name) for name in ('cucim', 'tifffile'))\n"
        "same = all(np.array_equal(one.read_level(n), other.read_level(n)) for n in range(3))\n"
        "print(same, open_slide(sys.argv[1]).backend)"
    )
    path = str(slides / "slides" / "phantom_001.tif")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == "True cucim\n"


def test_cucim_is_left_out_beside_horovod(slides: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = slides / "slides" / "phantom_000.tif"
    monkeypatch.setitem(sys.modules, "horovod.torch", sys)
    assert "cucim" not in installed()
    with open_slide(path) as slide:
        assert slide.backend == "tifffile"
    with pytest.raises(ValueError, match="cuCIM can't read in a process that has loaded Horovod"):
        open_slide(path, "cucim")


@pytest.mark.parametrize("form", ["bigtiff", "subifds", "svs"])
def test_pyramids_of_other_forms(tmp_path: Path, level_0: np.ndarray, form: str) -> None:
    import tifffile

    path, halves = tmp_path / f"slide{'.svs' if form == 'svs' else '.tif'}", [level_0, level_0[::2, ::2]]
    description = "Aperio Image Library v11.2.1\n640x512|AppMag = 20|MPP = 0.4990" if form == "svs" else None
    with tifffile.TiffWriter(path, bigtiff=form == "bigtiff") as file:
        for number, level in enumerate(halves):
            nested = {"subifds": 1} if form == "subifds" and number == 0 else {}
            file.write(
                level,
                tile=(128, 128),
                photometric="rgb",
                compression="adobe_deflate",
                metadata=None,
                subfiletype=1 if number else 0,
                description=description,
                **nested,
            )
    with open_slide(path, "tifffile") as slide:
        assert [level.downsample for level in slide.levels] == [1.0, 2.0]
        assert slide.mpp == (0.499 if form == "svs" else None)
        for number, level in enumerate(halves):
            np.testing.assert_array_equal(slide.read_level(number), level)
    (tmp_path / f"short{path.suffix}").write_bytes(path.read_bytes()[:-2000])
    if form != "subifds":  # the last tiles are those of a nested page
        with pytest.raises(ValueError, match="cut short"):
            open_slide(tmp_path / f"short{path.suffix}")


def test_files_are_the_same_again(slides: Path, tmp_path: Path) -> None:
    again = write_phantom_slides(
        tmp_path, num_cases=3, shape=(1, 640, 512), num_levels=3, compression="deflate", seed=3
    )
    for name in ("slides/phantom_001.tif", "masks/phantom_001.tif", "slides.csv"):
        assert (again / name).read_bytes() == (slides / name).read_bytes()
