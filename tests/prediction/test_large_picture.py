"""2-D images that are read, segmented and written in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.cases import section as files
from hasten.cases.section import read_section_header
from hasten.prediction import large_picture as section
from hasten.prediction.blend import window_starts
from hasten.prediction.predict import predict
from tests.training.phantom_runs import anatomy, variant


@pytest.fixture
def run(run_of_pictures: Path) -> Path:
    return run_of_pictures


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(files, "SECTION_PIXELS", 1000)
    monkeypatch.setattr(files, "_TILE", 32)
    monkeypatch.setattr(section, "_BLOCK", 40)
    return monkeypatch


def image(height: int, width: int) -> np.ndarray:
    """Boxes here and there in noise, with a margin of 0."""
    tile = np.tile(anatomy(3, (24, 20))[0], (-(-height // 24), -(-width // 20)))[:height, :width]
    result = tile.clip(1, 255).astype(np.uint8)
    result[:7], result[-3:], result[:, :5], result[:, -11:] = 0, 0, 0, 0
    return result


@pytest.mark.parametrize("prepare", [{}, {"crop_foreground": True}, {"intensity": "window", "window": [10, 200]}])
@pytest.mark.parametrize("shape", [(91, 103), (12, 160)])
def test_the_label_map_is_that_of_the_image_as_a_whole(
    run: Path, tmp_path: Path, small: pytest.MonkeyPatch, shape: tuple[int, int], prepare: dict[str, Any]
) -> None:
    model = variant(run, tmp_path / "run", **{"dtype": "float32", **prepare})
    tifffile.imwrite(tmp_path / "a.tif", image(*shape), tile=(32, 48), compression="zlib")
    Image.fromarray(image(*shape)).save(tmp_path / "b.png")
    part, whole = predict(model, [tmp_path / "a.tif", tmp_path / "b.png"], tmp_path / "out")
    assert part.name == "a.tif"
    actual, expected = tifffile.imread(part), np.asarray(Image.open(whole))
    assert actual.dtype == np.uint8
    assert actual.shape == shape
    assert (actual != expected).mean() < 1e-3  # a tie may fall either way
    assert len(np.unique(actual)) > 1
    with tifffile.TiffFile(part) as written:
        assert written.is_bigtiff
        assert written.pages[0].is_tiled


@settings(max_examples=50)
@given(side=st.integers(1, 400), window=st.integers(4, 40), overlap=st.floats(0, 0.9), block=st.integers(1, 100))
def test_blocks_cover_a_side_and_have_its_windows(side: int, window: int, overlap: float, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "_BLOCK", block)
        spans = section._spans(side, window, overlap)
    assert [span.first for span in spans] == [0, *(span.last for span in spans[:-1])]
    assert spans[-1].last == side
    starts = window_starts(max(side, window), window, overlap)
    for span in spans:
        covered = span.stop - span.start
        own = [span.start + start for start in window_starts(max(covered, window), window, overlap)]
        assert own == [start for start in starts if start < span.last and start + window > span.first]


def test_sections_in_a_folder_and_what_they_are_too_large_for(
    run: Path, tmp_path: Path, small: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "a.tif", image(60, 70), tile=(32, 32))
    Image.fromarray(image(24, 20)).save(tmp_path / "in" / "p.png")
    assert [path.name for path in predict(run, tmp_path / "in", tmp_path / "out")] == ["a.tif", "p.png"]
    assert [path.name for path in predict(run, tmp_path / "in", tmp_path / "out", resume=True)] == ["a.tif", "p.png"]
    with pytest.raises(ValueError, match="too large for --probabilities"):
        predict(run, tmp_path / "in", tmp_path / "more", probabilities=True)
    with pytest.raises(ValueError, match=r"so large that its label map is a \.tif"):
        predict(run, tmp_path / "in", tmp_path / "more", ending=".png")
    with pytest.raises(ValueError, match=r"a\.tif.*too large to be resampled"):
        predict(variant(run, tmp_path / "r", spacing=[1.0, 2.0, 2.0]), tmp_path / "in/a.tif", tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    "prepare", [{"crop_foreground": True}, {"intensity": "window", "window": [2570, 51400]}, {"intensity": "none"}]
)
def test_16_bits_are_scaled_as_those_of_the_image_as_a_whole(
    run: Path, tmp_path: Path, small: pytest.MonkeyPatch, prepare: dict[str, Any]
) -> None:
    deep = image(91, 103).astype(np.uint16) * 257
    if prepare.get("intensity") == "none":
        deep //= 257
        deep[50, 60] = 300
    model = variant(run, tmp_path / "run", **{"dtype": "float32", **prepare})
    tifffile.imwrite(tmp_path / "a.tif", deep, tile=(32, 48), compression="zlib")
    Image.fromarray(deep).save(tmp_path / "b.png")
    part, whole = predict(model, [tmp_path / "a.tif", tmp_path / "b.png"], tmp_path / "out")
    actual, expected = tifffile.imread(part), np.asarray(Image.open(whole))
    assert (actual != expected).mean() < 1e-3
    assert len(np.unique(actual)) > 1


@pytest.mark.parametrize(
    ("dtype", "prepare", "message"),
    [
        (np.float32, {}, r"a\.tif.*float32.*8- or 16-bit unsigned RGB or grey"),
        (np.uint16, {"intensity": "none"}, r"a\.tif.*float16 can't hold.*prepare\.dtype=float32"),
    ],
)
def test_pixels_that_cannot_be_are_named(
    run: Path, tmp_path: Path, small: pytest.MonkeyPatch, dtype: Any, prepare: dict[str, Any], message: str
) -> None:
    pixels = image(60, 70).astype(dtype)
    pixels[20, 30] = 65535
    tifffile.imwrite(tmp_path / "a.tif", pixels, tile=(32, 32))
    with pytest.raises(ValueError, match=message):
        predict(variant(run, tmp_path / "run", **prepare), tmp_path / "a.tif", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_section_to_be_turned_is_refused(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(tmp_path / "a.tif", image(60, 70), tile=(32, 32), extratags=[(274, 3, 1, 6, False)])
    with pytest.raises(ValueError, match=r"a\.tif.*orientation tag is 6.*save it upright"):
        read_section_header(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("shape", "options", "channels"),
    [
        ((60, 70, 2), {"photometric": "minisblack", "planarconfig": "contig"}, "2 on 1"),
        ((60, 70, 4), {"photometric": "rgb", "extrasamples": ["unspecified"]}, "4 on 1"),
        ((3, 60, 70), {"photometric": "minisblack", "metadata": {"axes": "CYX"}}, "3 on 3"),
    ],
)
def test_a_section_of_other_channels_is_refused(
    tmp_path: Path, small: pytest.MonkeyPatch, shape: tuple[int, ...], options: dict[str, Any], channels: str
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros(shape, np.uint8), tile=(32, 32), **options)
    with pytest.raises(ValueError, match=rf"a\.tif: .*1 or 3 channels .*holds {channels} pages; cut it into tiles"):
        read_section_header(tmp_path / "a.tif")
