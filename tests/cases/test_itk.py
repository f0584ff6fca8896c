"""NRRD and MetaImage: the voxels, spacing and affine that SimpleITK and nibabel see."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.cases.formats import read_file, read_file_header
from tests.cases.itk_images import DTYPES, Grid, affine_of, grids, image_of, sitk, voxels

ENDINGS = [".nrrd", ".nhdr", ".mha", ".mhd"]


@settings(max_examples=60, deadline=None)
@given(
    grid=grids(),
    ending=st.sampled_from(ENDINGS),
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(*[st.integers(1, 5)] * 3),
    compressed=st.booleans(),
)
def test_array_spacing_and_affine_agree(
    grid: Grid, ending: str, dtype: str, shape: tuple[int, int, int], compressed: bool
) -> None:
    image = image_of(voxels(dtype, shape), grid)
    with tempfile.TemporaryDirectory() as folder:
        path, nifti = Path(folder, f"case{ending}"), Path(folder, "case.nii.gz")
        sitk.WriteImage(image, str(path), compressed)
        sitk.WriteImage(image, str(nifti))
        result, header = read_file(path), read_file_header(path)
        by_sitk, by_nibabel, ours = sitk.ReadImage(str(path)), nib.load(nifti), read_file(nifti)
        assert result.array.dtype == dtype
        assert np.array_equal(result.array[0], sitk.GetArrayFromImage(by_sitk))
        assert np.array_equal(result.array[0], np.asarray(by_nibabel.dataobj).T)
    assert np.array_equal(result.array, ours.array)
    assert result.spacing == pytest.approx(by_sitk.GetSpacing()[::-1], rel=1e-5)
    assert np.allclose(result.affine, affine_of(by_sitk), atol=1e-6)
    for nifti_affine in (by_nibabel.affine, ours.affine):  # NIfTI keeps float32 and a quaternion
        assert np.allclose(result.affine, nifti_affine, atol=2e-4)
    assert header[:2] == (shape, 1)
    assert np.array_equal(header[2], result.affine)


@pytest.mark.parametrize("ending", ENDINGS)
def test_components_are_channels(tmp_path: Path, ending: str) -> None:
    array = voxels("float32", (4, 5, 6, 3))
    path = tmp_path / f"case{ending}"
    sitk.WriteImage(image_of(array, vector=True), str(path))
    text = read_file(path)
    assert np.array_equal(text.array, np.moveaxis(array, -1, 0))
    assert read_file_header(path)[:2] == ((4, 5, 6), 3)


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
def test_a_fourth_axis_is_refused_with_its_sizes(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"case{ending}"
    sitk.WriteImage(sitk.GetImageFromArray(voxels(shape=(2, 4, 5, 6)), isVector=False), str(path))
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=rf"case{ending}: .*4 axes \(6 x 5 x 4 x 2\); save each"):
            read(path)


def test_a_2d_image_has_depth_1(tmp_path: Path) -> None:
    image = sitk.GetImageFromArray(voxels("uint8", (5, 6)))
    image.SetSpacing((0.5, 0.25))
    sitk.WriteImage(image, str(tmp_path / "case.mha"))
    text = read_file(tmp_path / "case.mha")
    assert text.array.shape == (1, 1, 5, 6)
    assert text.spacing == (1.0, 0.25, 0.5)
    assert read_file_header(tmp_path / "case.mha")[0] == (1, 5, 6)


SPACE = "space: left-posterior-superior\nspace directions: "
UNITS_OF_NRRD = {
    "space units": f'{SPACE}(500,0,0) (0,700,0) (0,0,2000)\nspace units: "um" "um" "um"',
    "units": 'spacings: 500 700 2000\nunits: "µm" "µm" "µm"',
    "metres": f'{SPACE}(5e-4,0,0) (0,7e-4,0) (0,0,2e-3)\nspace units: "m" "m" "m"',
    "none": f"{SPACE}(.5,0,0) (0,.7,0) (0,0,2)",
}


@pytest.mark.parametrize("field", UNITS_OF_NRRD)
@pytest.mark.parametrize("ending", [".nrrd", ".nhdr"])
def test_units_of_a_nrrd_give_mm(tmp_path: Path, field: str, ending: str) -> None:
    path, array = tmp_path / f"case{ending}", voxels("uint8", (4, 5, 6))
    header = f"NRRD0005\ntype: uint8\ndimension: 3\nsizes: 6 5 4\nencoding: raw\n{UNITS_OF_NRRD[field]}\n"
    if ending == ".nhdr":
        (tmp_path / "case.raw").write_bytes(array.tobytes())
        path.write_text(f"{header}data file: case.raw\n", encoding="utf-8")
    else:
        path.write_bytes(f"{header}\n".encode() + array.tobytes())
    result = read_file(path)
    assert result.spacing == pytest.approx((2.0, 0.7, 0.5))
    assert np.array_equal(result.array[0], array)
    assert np.array_equal(read_file_header(path)[2], result.affine)


@pytest.mark.parametrize(("unit", "mm"), [("um", 1e-3), ("mm", 1.0), ("cm", 10.0), ("?", 1.0)])
def test_distance_units_of_a_metaimage_give_mm(tmp_path: Path, unit: str, mm: float) -> None:
    path = tmp_path / "case.mha"
    sitk.WriteImage(image_of(voxels()), str(path))
    before = read_file(path).affine
    path.write_bytes(path.read_bytes().replace(b"ElementType", f"DistanceUnits = {unit}\nElementType".encode()))
    np.testing.assert_allclose(read_file(path).affine[:3], mm * before[:3])


@pytest.mark.parametrize("name", ["case.nrrd", "case.mha", "case.mhd"])
def test_what_is_no_image_is_explained(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("some text")
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=rf"{name}: can't be read"):
            read(tmp_path / name)
        with pytest.raises(ValueError, match=r"gone.*: does not exist"):
            read(tmp_path / f"gone{name}")


def test_without_simpleitk_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sitk.WriteImage(image_of(voxels()), str(tmp_path / "case.mha"))
    (tmp_path / "series").mkdir()
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    for path in (tmp_path / "case.mha", tmp_path / "series"):
        for read in (read_file, read_file_header):
            with pytest.raises(ValueError, match=r"pip install 'hasten\[itk\]'"):
                read(path)


def mhd(folder: Path, **fields: str) -> Path:
    """A .mhd of 4 x 5 x 6 voxels with other fields."""
    path = folder / "case.mhd"
    sitk.WriteImage(image_of(voxels()), str(path))
    lines = [line.partition(" = ") for line in path.read_text().splitlines()]
    path.write_text("".join(f"{name} = {fields.get(name, value)}\n" for name, _, value in lines))
    return path


@pytest.mark.parametrize("dims", ["-1", "0", "99", "x"])
def test_numbers_of_axes_that_end_the_process_are_refused(tmp_path: Path, dims: str) -> None:
    with pytest.raises(ValueError, match=rf"case\.mhd: its header says NDims = {dims}; correct it"):
        read_file_header(mhd(tmp_path, NDims=dims))


@pytest.mark.parametrize(("dims", "sizes"), [("3", "6 5 0"), ("1", "6")])
def test_sizes_that_are_no_volume_are_refused(tmp_path: Path, dims: str, sizes: str) -> None:
    with pytest.raises(ValueError, match=rf"case\.mhd: has {dims} axes .*; save"):
        read_file_header(mhd(tmp_path, NDims=dims, DimSize=sizes, TransformMatrix="1", Offset="0"))


def test_a_list_of_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"case\.mhd: names a list of files for its voxels"):
        read_file(mhd(tmp_path, ElementDataFile="LIST\na.raw"))
