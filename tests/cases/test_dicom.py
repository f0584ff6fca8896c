"""DICOM series: the voxels and affine that SimpleITK sees, in the order of their positions."""

from __future__ import annotations

import json
import locale
import shutil
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.cases.formats import read_file, read_file_header
from hasten.cases.sources import find_listing
from hasten.evaluation.pairs import find_pairs
from tests.cases.itk_images import (
    Grid,
    affine_of,
    get_tag,
    grids,
    kept_locale,
    read_by_sitk,
    set_tag,
    sitk,
    voxels,
    write_series,
)


def right_handed(grid: Grid) -> Grid:
    """DICOM has no mirrored volumes: its normal follows from rows and columns."""
    spacing, origin, direction = grid
    return spacing, origin, direction * np.linalg.det(direction).round()


@settings(max_examples=25, deadline=None)
@given(
    grid=grids().map(right_handed),
    names=st.permutations(range(5)),
    dtype=st.sampled_from(["uint8", "int16", "uint16"]),
    scale=st.sampled_from([(1.0, 0.0), (1.0, -1024.0), (2.0, 3.0), (0.5, -1.25)]),
)
def test_array_spacing_and_affine_agree(grid: Grid, names: list[int], dtype: str, scale: tuple[float, float]) -> None:
    array = voxels(dtype, (5, 4, 3))
    slope, inter = scale
    with tempfile.TemporaryDirectory() as folder:
        series = write_series(Path(folder, "series"), array, grid, names=names)
        for file in series.iterdir():
            _set_scale(file, slope, inter)
        result, header, by_sitk = read_file(series), read_file_header(series), read_by_sitk(series)
        sitk.WriteImage(by_sitk, str(Path(folder, "case.nii.gz")))
        by_nibabel, ours = nib.load(Path(folder, "case.nii.gz")), read_file(Path(folder, "case.nii.gz"))
        assert np.array_equal(result.array[0], np.asarray(by_nibabel.dataobj, np.float32).T)
    assert np.array_equal(result.array[0], array * slope + inter)
    assert np.array_equal(result.array[0], sitk.GetArrayFromImage(by_sitk))
    assert np.array_equal(result.array, ours.array)
    assert result.array.dtype.kind == ("f" if slope == 0.5 else sitk.GetArrayFromImage(by_sitk).dtype.kind)
    assert result.spacing == pytest.approx(grid[0][::-1], abs=1e-5)
    assert np.allclose(result.affine, affine_of(by_sitk), atol=1e-4)
    for nifti_affine in (by_nibabel.affine, ours.affine):
        assert np.allclose(result.affine, nifti_affine, atol=5e-4)
    assert header[:2] == ((5, 4, 3), 1)
    assert np.array_equal(header[2], result.affine)


def _set_scale(file: Path, slope: float, inter: float) -> None:
    set_tag(file, (0x28, 0x1053), f"{slope:g}")
    set_tag(file, (0x28, 0x1052), f"{inter:g}")


def test_slices_scaled_apart_keep_their_values(tmp_path: Path) -> None:
    """As in PET. The type of the first slice, integer, would cut those of the others."""
    array = voxels("int16", (3, 4, 5))
    series = write_series(tmp_path / "series", array, names=[0, 1, 2])
    slopes = (1.0, 0.25, 3.0)
    for file, slope in zip(sorted(series.iterdir()), slopes, strict=True):
        _set_scale(file, slope, 0)
    result = read_file(series).array
    assert result.dtype == np.float32
    assert np.array_equal(result[0], array * np.array(slopes)[:, None, None])


def test_a_damaged_slice_is_named_rather_than_left_out(tmp_path: Path) -> None:
    series = write_series(tmp_path / "series", voxels(shape=(5, 4, 3)))
    last = sorted(series.iterdir())[-1]
    last.write_bytes(last.read_bytes()[:300])
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=rf"{last.name}: can't be read"):
            read(series)


def test_two_series_in_a_folder_are_refused_with_their_list(tmp_path: Path) -> None:
    write_series(tmp_path / "series", voxels(), uid="1.2.3")
    write_series(tmp_path / "series", voxels(shape=(3, 5, 6)), uid="4.5.6")
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=r"2 DICOM series.*1\.2\.3 \(4 files.*4\.5\.6 \(3 files"):
            read(tmp_path / "series")


@pytest.mark.parametrize("missing", [[3], [1], [2, 3]])
def test_missing_slices_are_named(tmp_path: Path, missing: list[int]) -> None:
    array = voxels(shape=(7, 5, 6))
    series = write_series(tmp_path / "series", array, skip=missing, names=range(7))
    gap = 2.5 * (len(missing) + 1)
    beside = rf"{missing[0] - 1:02d}-1\.2\.3\.dcm and {missing[-1] + 1:02d}-1\.2\.3\.dcm"
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=rf"2\.5 mm apart, .*{beside} .*{gap:g} mm; restore"):
            read(series)


def test_a_repeated_slice_is_refused(tmp_path: Path) -> None:
    series = write_series(tmp_path / "series", voxels())
    shutil.copyfile(next(series.iterdir()), series / "copy.dcm")
    with pytest.raises(ValueError, match=r"are 0 mm; .* remove repeats"):
        read_file(series)


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        *((0x32, text) for text in ("a\\b\\c", "1\\2\\nan", "1\\2\\", "1,5\\2\\3", "1\\2", "")),
        *(
            (0x37, text)
            for text in ("a\\b\\c\\d\\e\\f", "nan\\0\\0\\0\\1\\0", "0\\0\\0\\0\\0\\0", "1\\0\\0\\1\\0\\0", "")
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 4])
def test_slices_that_do_not_say_where_they_lie(tmp_path: Path, tag: int, text: str, count: int) -> None:
    """SimpleITK would put them at 0, or across the body."""
    series = write_series(tmp_path / "series", voxels())
    files = sorted(series.iterdir())[-count:]
    for file in files:
        set_tag(file, (0x20, tag), text)
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=rf"{files[0].name}: doesn't say where it lies \(tag 0020\|00{tag:02x}\)"):
            read(series)


def test_positions_rounded_to_a_tenth_are_one_series(tmp_path: Path) -> None:
    grid = ((1.0, 1.0, 0.63), (0.0, 0.0, 0.0), np.eye(3))
    series = write_series(tmp_path / "series", voxels(shape=(6, 4, 3)), grid)
    for file in series.iterdir():
        x, y, z = get_tag(file, "0020|0032").split("\\")
        set_tag(file, (0x20, 0x32), f"{x}\\{y}\\{float(z):.1f}")
    assert read_file(series).spacing[0] == pytest.approx(0.63, abs=0.03)


def test_slices_of_another_size_or_direction_are_refused(tmp_path: Path) -> None:
    write_series(tmp_path / "sizes", voxels(), names=range(4))
    write_series(tmp_path / "sizes", voxels(shape=(4, 5, 7)), names=[4, 5, 6, 7, 0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"of \(5, 6\) and .* of \(5, 7\) \(H, W\) differ in size"):
        read_file(tmp_path / "sizes")
    turned = ((0.7, 0.8, 2.5), (0.0, 0.0, 0.0), np.eye(3))
    write_series(tmp_path / "turned", voxels(), names=range(4))
    write_series(tmp_path / "turned", voxels(), turned, names=[4, 5, 6, 7, 0, 1, 2, 3])
    with pytest.raises(ValueError, match="differ in size, channels, direction"):
        read_file(tmp_path / "turned")


def test_a_tilted_gantry_shears_the_volume(tmp_path: Path) -> None:
    """The slices lie where their positions say, not along the normal."""
    array = voxels(shape=(3, 4, 5))
    for number in range(3):
        grid = ((1.0, 1.0, 2.0), (0.0, 0.5 * number, 2.0 * number), np.eye(3))
        write_series(tmp_path / "one", array[number : number + 1], grid, names=[0])
        next((tmp_path / "one").iterdir()).rename(tmp_path / f"{number}.dcm")
    series = tmp_path / "series"
    series.mkdir()
    for number in range(3):
        (tmp_path / f"{number}.dcm").rename(series / f"{number}.dcm")
    text = read_file(series)
    assert np.array_equal(text.array[0], array)
    assert text.affine @ (0, 0, 2, 1) == pytest.approx((0, -1.0, 4.0, 1))


@pytest.mark.parametrize("depth", [1, 4])
def test_one_file(tmp_path: Path, depth: int) -> None:
    """A series of a single slice, or a single file of several frames."""
    array = voxels("uint8", (depth, 5, 6))
    if depth == 1:
        write_series(tmp_path / "series", array)
    else:
        (tmp_path / "series").mkdir()
        with kept_locale():
            sitk.WriteImage(sitk.GetImageFromArray(array), str(tmp_path / "series" / "all.dcm"))
    assert np.array_equal(read_file(tmp_path / "series").array[0], array)
    assert read_file_header(tmp_path / "series")[:2] == ((depth, 5, 6), 1)


def test_reading_leaves_the_locale_alone(tmp_path: Path) -> None:
    """GDCM's writer does not; text files would be read in another encoding from then on."""
    series = write_series(tmp_path / "series", voxels())
    before = locale.setlocale(locale.LC_ALL)
    read_file(series)
    read_file_header(series)
    assert locale.setlocale(locale.LC_ALL) == before


@pytest.mark.parametrize(
    ("uid", "name"), [("1.2.840.10008.5.1.4.1.1.66.4", "SEG"), ("1.2.840.10008.5.1.4.1.1.481.3", "RTSTRUCT")]
)
def test_segmentations_and_contours_are_named(tmp_path: Path, uid: str, name: str) -> None:
    text = uid.encode() + b"\0" * (len(uid) % 2)
    header = b"\x02\x00\x01\x00OB\0\0\x02\0\0\0\0\x01" + b"\x02\x00\x02\x00UI" + len(text).to_bytes(2, "little") + text
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "a.dcm").write_bytes(b"\0" * 128 + b"DICM" + header)
    for path in (tmp_path / "case", tmp_path / "case" / "a.dcm"):
        with pytest.raises(ValueError, match=rf"a\.dcm: is a DICOM .*\({name}\), which is no image; convert"):
            read_file(path)
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "images" / "a.png")
    (tmp_path / "case").rename(tmp_path / "labels")
    with pytest.raises(ValueError, match=rf"labels/a\.dcm: is a DICOM .*\({name}\)"):
        find_listing(tmp_path)
    for sides in (("labels", "images"), ("images", "labels")):
        with pytest.raises(ValueError, match=rf"labels/a\.dcm: is a DICOM .*\({name}\)"):
            find_pairs(*(tmp_path / side for side in sides))
    (tmp_path / "images").rename(tmp_path / "imagesTr")
    (tmp_path / "imagesTr/a.png").rename(tmp_path / "imagesTr/a_0000.png")
    (tmp_path / "labels").rename(tmp_path / "labelsTr")
    content = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "a": 1}, "file_ending": ".png"}
    (tmp_path / "dataset.json").write_text(json.dumps({**content, "numTraining": 1}))
    with pytest.raises(ValueError, match=rf"labelsTr/a\.dcm: is a DICOM .*\({name}\)"):
        find_listing(tmp_path)
