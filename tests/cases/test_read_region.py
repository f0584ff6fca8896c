"""Regions: exactly the part of the whole that they name, and no more of the file read than needed."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.cases import tiff
from hasten.cases.formats import read_file
from hasten.cases.read_region import read_region
from tests.cases.itk_images import OBLIQUE, image_of, sitk, voxels, write_series

SHAPE = (5, 6, 7)
AFFINE = np.eye(4)
AFFINE[:3, :3] = OBLIQUE * (0.5, 0.75, 2.0)
AFFINE[:3, 3] = (10, -20, 30)


def _nifti(path: Path, dtype: str, slope: float | None = None, channels: int = 1) -> Path:
    array = voxels(dtype, (channels, *SHAPE)) if channels > 1 else voxels(dtype, SHAPE)
    # A pair written by nibabel's NIfTI class keeps slope and affine, as no Analyze header could.
    kind = nib.Nifti1Pair if path.name.endswith((".hdr", ".img", ".img.gz")) else nib.Nifti1Image
    image = kind(array.T, AFFINE)
    if slope:
        image.header.set_slope_inter(slope, -3)
    nib.save(image, path)
    return path


def _big_endian(path: Path) -> Path:
    header = nib.Nifti1Header(endianness=">")
    header.set_data_dtype(">i2")
    nib.save(nib.Nifti1Image(voxels("int16", SHAPE).T, AFFINE, header), path)
    return path


def _itk(path: Path, dtype: str, *, compressed: bool = False, channels: int = 1) -> Path:
    shape = (*SHAPE, channels) if channels > 1 else SHAPE
    sitk.WriteImage(image_of(voxels(dtype, shape), vector=channels > 1), str(path), compressed)
    return path


def _stack(path: Path, array: np.ndarray, description: str = "") -> Path:
    first, *others = (Image.fromarray(page) for page in array)
    first.save(path, save_all=True, append_images=others, compression="tiff_lzw", description=description)
    return path


def _hyperstack(path: Path) -> Path:
    about = "ImageJ=1.54\nimages=10\nslices=5\nchannels=2\nunit=mm\nspacing=3\n"
    return _stack(path, voxels("uint16", (10, 6, 7)), about)


def _picture(path: Path) -> Path:
    Image.fromarray(voxels("uint8", (6, 7, 3))).save(path)
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "nii uint8": lambda folder: _nifti(folder / "a.nii", "uint8"),
    "nii scaled int16": lambda folder: _nifti(folder / "b.nii", "int16", 0.5),
    "nii scaled int32": lambda folder: _nifti(folder / "c.nii", "int32", 2.5),
    "nii float32 of 3 channels": lambda folder: _nifti(folder / "d.nii", "float32", channels=3),
    "nii float64": lambda folder: _nifti(folder / "e.nii", "float64"),
    "nii big-endian": lambda folder: _big_endian(folder / "f.nii"),
    "nii.gz": lambda folder: _nifti(folder / "g.nii.gz", "int16", 0.5),
    "img": lambda folder: _nifti(folder / "h.img", "int16"),
    "img scaled": lambda folder: _nifti(folder / "i.img", "int16", 0.5),
    "hdr named": lambda folder: _nifti(folder / "j.img", "uint8").with_suffix(".hdr"),
    "img.gz": lambda folder: _nifti(folder / "k.img.gz", "int16"),
    "mha": lambda folder: _itk(folder / "l.mha", "int16"),
    "mha compressed": lambda folder: _itk(folder / "m.mha", "float32", compressed=True),
    "mhd of 2 channels": lambda folder: _itk(folder / "n.mhd", "uint8", channels=2),
    "nrrd": lambda folder: _itk(folder / "o.nrrd", "uint16"),
    "nrrd compressed": lambda folder: _itk(folder / "p.nrrd", "float64", compressed=True),
    "nhdr of 2 channels": lambda folder: _itk(folder / "q.nhdr", "float32", channels=2),
    "series": lambda folder: write_series(folder / "series", voxels(shape=SHAPE)),
    "one slice": lambda folder: write_series(folder / "slice", voxels(shape=(1, 6, 7))),
    "tif": lambda folder: _stack(folder / "r.tif", voxels("uint16", SHAPE)),
    "tif in colour": lambda folder: _stack(folder / "s.tif", voxels("uint8", (*SHAPE, 3))),
    "tif of 2 channels": lambda folder: _hyperstack(folder / "t.tif"),
    "png": lambda folder: _picture(folder / "u.png"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {name: make(folder) for name, make in MAKERS.items()}


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(MAKERS)), data=st.data())
def test_a_region_is_that_part_of_the_whole(files: dict[str, Path], name: str, data: st.DataObject) -> None:
    whole = read_file(files[name])
    shape = whole.array.shape[1:]
    start = data.draw(st.tuples(*[st.integers(0, n - 1) for n in shape]))
    size = data.draw(st.tuples(*[st.integers(1, n - at) for n, at in zip(shape, start, strict=True)]))
    region = read_region(files[name], start, size)
    part = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
    assert region.array.dtype == whole.array.dtype
    assert np.array_equal(region.array, whole.array[(slice(None), *part)])
    corner = whole.affine @ (*start[::-1], 1)
    assert np.allclose(region.affine @ (0, 0, 0, 1), corner, atol=1e-6)
    assert np.array_equal(region.affine[:3, :3], whole.affine[:3, :3])


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_whole_is_a_region(files: dict[str, Path], name: str) -> None:
    whole = read_file(files[name])
    region = read_region(files[name], (0, 0, 0), whole.array.shape[1:])
    assert np.array_equal(region.array, whole.array)
    assert region.array.dtype == whole.array.dtype
    assert np.array_equal(region.affine, whole.affine)


@pytest.mark.parametrize(
    ("start", "size"),
    [((0, 0, 0), (6, 1, 1)), ((-1, 0, 0), (1, 1, 1)), ((4, 5, 7), (1, 1, 1)), ((0, 0, 0), (1, 0, 1)), ((0, 0), (1, 1))],
)
@pytest.mark.parametrize("name", ["nii uint8", "img", "mha", "nrrd", "series", "tif"])
def test_a_region_outside_is_refused(
    files: dict[str, Path], name: str, start: tuple[int, ...], size: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError) as error:
        read_region(files[name], start, size)
    for message in (files[name], size, start, SHAPE):
        assert str(message) in str(error.value)


def test_a_label_is_read_as_indices(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((4, 5), value, np.uint8), "P") for value in (0, 1, 2)]
    for page in pages:
        page.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    pages[0].save(tmp_path / "label.tif", save_all=True, append_images=pages[1:])
    pages[2].save(tmp_path / "label.png")
    assert read_region(tmp_path / "label.tif", (2, 1, 1), (1, 1, 2), label=True).array.tolist() == [[[[2, 2]]]]
    assert read_region(tmp_path / "label.png", (0, 1, 1), (1, 1, 2), label=True).array.tolist() == [[[[2, 2]]]]


def _sparse(path: Path, shape: tuple[int, int, int], suffix: str) -> int:
    """A NIfTI of zeros that takes no space on the disk; returns where its voxels start."""
    header = nib.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape[::-1])
    header.set_sform(AFFINE, 1)
    header["magic"] = b"n+1" if suffix == ".nii" else b"ni1"
    header["vox_offset"] = offset = 352 if suffix == ".nii" else 0
    header["scl_slope"], header["scl_inter"] = 2, 1
    with path.with_suffix(".nii" if suffix == ".nii" else ".hdr").open("wb") as file:
        file.write(header.binaryblock + b"\0" * 4)
    with path.open("ab") as file:
        file.truncate(offset + 2 * int(np.prod(shape)))
    return offset


@pytest.mark.parametrize("suffix", [".nii", ".img"])
def test_a_nifti_is_not_read_whole(tmp_path: Path, suffix: str) -> None:
    """Of 32 GB, a few MB: what tracemalloc sees, and what the process asked its files for."""
    shape, path = (4096, 2048, 2048), tmp_path / f"big{suffix}"
    offset = _sparse(path, shape, suffix)
    start, size = (4000, 2000, 100), (8, 40, 50)
    marks = np.arange(50, dtype="<i2")
    with path.open("r+b") as file:
        file.seek(offset + 2 * ((4003 * 2048 + 2010) * 2048 + 100))
        file.write(marks.tobytes())
    process = psutil.Process()
    before = process.memory_info().rss
    tracemalloc.start()
    try:
        region = read_region(path, start, size)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    wanted = np.ones((1, *size), np.float32)
    wanted[0, 3, 10] = marks * 2 + 1
    assert np.array_equal(region.array, wanted)
    assert np.allclose(region.affine[:3, 3], (AFFINE @ (100, 2000, 4000, 1))[:3], rtol=1e-6)
    assert peak < 4 << 20
    assert process.memory_info().rss - before < 256 << 20


def test_of_a_series_only_the_slices_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = write_series(tmp_path / "series", voxels(shape=SHAPE), names=range(5))
    whole = read_file(series).array
    read: list[str] = []
    plain = sitk.ImageSeriesReader.SetFileNames

    def watched(reader: object, names: list[str]) -> None:
        read.extend(Path(name).name for name in names)
        plain(reader, names)

    monkeypatch.setattr(sitk.ImageSeriesReader, "SetFileNames", watched)
    region = read_region(series, (2, 1, 1), (2, 3, 4))
    assert np.array_equal(region.array, whole[:, 2:4, 1:4, 1:5])
    assert read == ["02-1.2.3.dcm", "03-1.2.3.dcm"]


def test_of_a_stack_only_the_pages_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _hyperstack(tmp_path / "case.tif")
    pages: list[int] = []
    plain = tiff._decoded

    def watched(stack: object, number: int) -> np.ndarray:
        pages.append(number)
        return plain(stack, number)

    monkeypatch.setattr(tiff, "_decoded", watched)
    read_region(path, (1, 0, 0), (2, 2, 2))
    assert sorted(pages) == [2, 3, 4, 5]


@pytest.mark.parametrize("name", ["short.nii", "short.img"])
def test_a_file_that_ends_early_is_explained(tmp_path: Path, name: str) -> None:
    path = _nifti(tmp_path / name, "int16")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=rf"{name}: the header says 1 x \(5, 6, 7\) voxels of int16"):
        read_region(path, (0, 0, 0), (1, 1, 1))


def test_a_compressed_file_under_the_name_of_a_plain_one(tmp_path: Path) -> None:
    path = _nifti(tmp_path / "a.nii", "int16")
    whole = read_file(path).array
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert np.array_equal(read_region(path, (1, 2, 3), (2, 2, 2)).array, whole[:, 1:3, 2:4, 3:5])
