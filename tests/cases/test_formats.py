"""One function for every format: what it takes for which, and what other readers see in the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hasten.cases.formats import is_nifti, is_picture, named_files, read_file, read_file_header, reader_of, stem
from tests.cases.itk_images import sitk, voxels, write_series


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
    for name in ("c.nii.gz", "e.mha", "readme.txt", ".hidden.png"):
        (tmp_path / name).touch()
    kinds = {"one.tif": "tiff", "two.TIFF": "tiff", "b.png": "picture", "case.nii": "series", "e.mha": "itk",
             "c.nii.gz": "nifti"}  # fmt: skip
    files = [path for _, path in named_files(tmp_path)]
    assert {path.name: reader_of(path) for path in files} == kinds
    assert {path.name for path in files if is_picture(path)} == {"one.tif", "b.png"}
    assert {path.name for path in files if is_nifti(path)} == {"c.nii.gz"}
    assert {stem(path) for path in files} == {"one", "two", "b", "case.nii", "c", "e"}


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.mha", "a.nrrd", "a.tif", "a.png"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "second"),
    [("a.nii", ""), ("a.png", ""), ("a.tif", ""), ("a.mha", ""), ("a.mhd", "a.raw"), ("a.nhdr", "a.raw")],
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
