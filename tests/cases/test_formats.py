"""One function for every format: what it takes for which, and what other readers see in the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.cases.formats import is_nifti, is_picture, kind_of, list_files, read_file, read_file_header, stem
from tests.cases.itk_images import DTYPES, Grid, affine_of, grids, image_of, sitk, voxels, write_series


@settings(max_examples=60, deadline=None)
@given(
    grid=grids(),
    ending=st.sampled_from([".nii", ".nii.gz", ".img", ".hdr"]),
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(*[st.integers(1, 5)] * 3),
    scale=st.sampled_from([None, (0.5, -3.0), (2.0, 0.0)]),
    by_nibabel=st.booleans(),
)
def test_nifti_agrees_with_nibabel_and_simpleitk(
    grid: Grid,
    ending: str,
    dtype: str,
    shape: tuple[int, int, int],
    scale: tuple[float, float] | None,
    by_nibabel: bool,
) -> None:
    image = image_of(voxels(dtype, shape), grid)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"case{ending}")
        if by_nibabel:
            kind = nib.Nifti1Image if ".nii" in ending else nib.Nifti1Pair
            made = kind(voxels(dtype, shape).T, affine_of(image), dtype=dtype)
            made.header.set_slope_inter(*(scale or (None, None)))
            nib.save(made, path)
        else:
            sitk.WriteImage(image, str(path))
        result, header = read_file(path), read_file_header(path)
        theirs, itk = nib.load(path), sitk.ReadImage(str(path))
        assert np.array_equal(result.array[0], np.asarray(theirs.dataobj).T)
        assert np.array_equal(result.array[0], sitk.GetArrayFromImage(itk))
    assert np.allclose(result.affine, theirs.affine, atol=1e-6)
    assert np.allclose(result.affine, affine_of(itk), atol=5e-4)
    assert result.spacing == pytest.approx(itk.GetSpacing()[::-1], rel=1e-4)
    assert result.spacing == pytest.approx([float(each) for each in theirs.header.get_zooms()[::-1]], rel=1e-4)
    assert header[:2] == (shape, 1)
    assert np.array_equal(header[2], result.affine)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "deep.png", "stack.tif"])
def test_pictures_and_stacks_agree_with_simpleitk(tmp_path: Path, name: str) -> None:
    pages = [Image.fromarray(page) for page in voxels("uint8" if name.startswith("a") else "uint16")]
    pages[0].save(tmp_path / name, **({"save_all": True, "append_images": pages[1:]} if name == "stack.tif" else {}))
    theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / name)))
    result = read_file(tmp_path / name).array
    assert result.dtype == theirs.dtype
    assert np.array_equal(result[0] if theirs.ndim == 3 else result[0, 0], theirs)


def test_kinds(tmp_path: Path) -> None:
    """A folder is a series whatever its name, and a TIFF is told by its pages."""
    page = Image.fromarray(voxels("uint8")[0])
    page.save(tmp_path / "one.tif")
    page.save(tmp_path / "two.TIFF", save_all=True, append_images=[page])
    page.save(tmp_path / "b.png")
    write_series(tmp_path / "case.nii", voxels())
    (tmp_path / "empty").mkdir()
    for name in ("c.nii.gz", "d.HDR", "d.img", "e.mha", "readme.txt", ".hidden.png"):
        (tmp_path / name).touch()
    kinds = {"one.tif": "tiff", "two.TIFF": "tiff", "b.png": "picture", "case.nii": "series", "e.mha": "itk",
             "c.nii.gz": "nifti", "d.img": "nifti"}  # fmt: skip
    assert {path.name: kind_of(path) for path in list_files(tmp_path)} == kinds
    assert {path.name for path in list_files(tmp_path) if is_picture(path)} == {"one.tif", "b.png"}
    assert {path.name for path in list_files(tmp_path) if is_nifti(path)} == {"c.nii.gz", "d.img"}
    assert {stem(path) for path in list_files(tmp_path)} == {"one", "two", "b", "case.nii", "c", "d", "e"}


@pytest.mark.parametrize("read", [read_file, read_file_header])
def test_an_unknown_kind_names_those_known(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match=r"a\.xyz: is of no known kind \(.*\.nrrd.*\.tif"):
        read(tmp_path / "a.xyz")


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.img", "a.mha", "a.nrrd", "a.tif", "a.png"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "second"),
    [("a.nii", ""), ("a.png", ""), ("a.tif", ""), ("a.mha", ""), ("a.img", "a.hdr"), ("a.hdr", "a.img"),
     ("a.mhd", "a.raw"), ("a.nhdr", "a.raw")],
)  # fmt: skip
def test_a_device_is_not_read(tmp_path: Path, name: str, second: str) -> None:
    """Reading a pipe may wait for ever, and reading /dev/zero never ends."""
    if name == "a.mhd":
        (tmp_path / name).write_text("ElementDataFile = a.raw")
    elif name == "a.nhdr":
        (tmp_path / name).write_text("data file: a.raw")
    (tmp_path / (second or name)).symlink_to("/dev/null")
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=rf"{name}: (.*{second} )?is a device or a pipe"):
            read(tmp_path / name)


def test_a_path_may_be_text(tmp_path: Path) -> None:
    Image.new("L", (4, 3)).save(tmp_path / "x.tif")
    assert read_file(str(tmp_path / "x.tif")).array.shape == (1, 1, 3, 4)
    assert read_file_header(str(tmp_path / "x.tif"))[0] == (1, 3, 4)
