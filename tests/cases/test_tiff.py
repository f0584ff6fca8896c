"""TIFF stacks: the voxels that tifffile wrote, and the voxel sizes that ImageJ and OME state."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.cases.formats import is_picture, read_file, read_file_header
from hasten.cases.read import read_image, read_label
from hasten.cases.sources import load_case_set
from hasten.cases.tiff import is_stack
from hasten.cases.types import Case


def write(path: Path, array: np.ndarray, **options: Any) -> None:
    """By tifffile, which takes three or four pages for colours unless told."""
    tifffile.imwrite(path, array, **{"photometric": "minisblack", **options})


def voxels(dtype: str = "uint16", shape: tuple[int, ...] = (3, 4, 5)) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 2**32, shape)
    return values.astype(np.float32) / 7 if dtype == "float32" else values.astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64", "int64"]),
    shape=st.tuples(st.integers(2, 5), st.integers(2, 6), st.integers(2, 6)),
    byteorder=st.sampled_from("<>"),
    compression=st.sampled_from([None, "zlib", "lzw"]),
    bigtiff=st.booleans(),
)
def test_pages_are_slices(
    dtype: str, shape: tuple[int, int, int], byteorder: str, compression: str | None, bigtiff: bool
) -> None:
    array = voxels(dtype, shape)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.tif")
        write(path, array, byteorder=byteorder, compression=compression, bigtiff=bigtiff)
        read = read_file(path)
        assert is_stack(path)
        assert not is_picture(path)
        header = read_file_header(path)
    assert read.array.dtype == dtype
    assert np.array_equal(read.array, array[None])
    assert np.array_equal(read.affine, np.eye(4))
    assert header[:2] == (shape, 1)


@settings(max_examples=120, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "uint16", "int16", "float16", "float32", "float64", "int64"]),
    sides=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    planar=st.sampled_from(["contig", "separate"]),
    photometric=st.sampled_from(["minisblack", "miniswhite", "rgb"]),
    extra=st.lists(st.sampled_from([0, 1, 2]), max_size=3),
    pages=st.sampled_from([None, "C", "Z"]),
    compression=st.sampled_from([None, "zlib"]),
)
def test_every_sample_is_a_channel_but_opacity(
    dtype: str, sides: tuple[int, int], planar: str, photometric: str, extra: list[int], pages: str | None,
    compression: str | None,
) -> None:  # fmt: skip
    samples = (3 if photometric == "rgb" else 1) + len(extra)
    lead = () if pages is None else (2,)
    inner = (samples, *sides) if planar == "separate" else (*sides, samples)
    values = voxels(dtype, lead + inner)
    axes = (pages or "") + ("SYX" if planar == "separate" else "YXS")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.tif")
        write(path, values if samples > 1 else values.reshape(lead + sides), photometric=photometric,
              planarconfig=planar if samples > 1 else None, extrasamples=extra, compression=compression,
              metadata={"axes": axes if samples > 1 else axes.replace("S", "")})  # fmt: skip
        theirs = tifffile.imread(path).reshape(lead + inner)
        read, (shape, num_channels, _) = read_file(path), read_file_header(path)
        assert is_picture(path) == (pages != "Z")
    channels = np.moveaxis(theirs, axes.index("S"), len(lead))
    kept = [*range(samples - len(extra)), *(samples - len(extra) + i for i, kind in enumerate(extra) if kind == 0)]
    channels = channels.reshape(-1, samples, *sides)[:, kept]
    expected = channels.swapaxes(0, 1) if pages == "Z" else channels.reshape(-1, 1, *sides)
    assert read.array.dtype == ("float32" if dtype == "float16" else dtype)
    np.testing.assert_array_equal(read.array, expected)
    assert (num_channels, *shape) == expected.shape


@pytest.mark.parametrize("axes", [None, "TZYX", "QZYX"])
def test_axes_that_are_no_volume_are_refused(tmp_path: Path, axes: str | None) -> None:
    write(tmp_path / "a.tif", voxels(shape=(2, 3, 4, 5)), **({"metadata": {"axes": axes}} if axes else {}))
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=r"a\.tif: has the axes .*metadata=\{'axes': 'ZCYX'\}"):
            read(tmp_path / "a.tif")


@pytest.mark.parametrize(("axes", "shape"), [("YXC", (4, 1, 6, 5)), ("YXZ", (1, 4, 6, 5)), ("YCX", (5, 1, 6, 4))])
def test_axes_count_as_they_are_called(tmp_path: Path, axes: str, shape: tuple[int, ...]) -> None:
    values = voxels(shape=(6, 5, 4))
    write(tmp_path / "a.tif", values, metadata={"axes": axes})
    order = [axes.index(letter) for letter in ("C" if "C" in axes else "Z") + "YX"]
    np.testing.assert_array_equal(read_file(tmp_path / "a.tif").array, values.transpose(order).reshape(shape))
    assert read_file_header(tmp_path / "a.tif")[:2] == (shape[1:], shape[0])


def test_a_missing_codec_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.tif", voxels("uint8"), compression="lzw")
    command = f"import sys; sys.modules['imagecodecs'] = None; sys.path[:0] = {sys.path!r}\n"
    command += f"from hasten.cases.formats import read_file; read_file({str(tmp_path / 'a.tif')!r})"
    text = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stderr
    assert "a.tif: its LZW data can't be decoded" in text
    assert "imagecodecs" in text


@pytest.mark.parametrize(("dtype", "compression"), [("bool", None), ("bool", "packbits"), ("uint8", "packbits")])
def test_values_of_min_is_white_are_those_stored(tmp_path: Path, dtype: str, compression: str | None) -> None:
    values = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    write(tmp_path / "a.tif", values, photometric="miniswhite", compression=compression)
    for label in (False, True):
        array = read_file(tmp_path / "a.tif", label=label).array
        assert array.dtype == (np.uint8 if dtype == "bool" else dtype)
        np.testing.assert_array_equal(array, values.reshape(1, -1, 3, 4))


def test_pages_are_turned_upright(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write(tmp_path / "a.tif", values, extratags=[(274, 3, 1, 6, False)])
    array = read_file(tmp_path / "a.tif").array
    np.testing.assert_array_equal(array[0], np.rot90(values, -1, (1, 2)))
    assert read_file_header(tmp_path / "a.tif")[0] == array.shape[1:]


def test_a_palette_is_indices_in_a_label(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((4, 5), value, np.uint8), "P") for value in (0, 1, 2)]
    for page in pages:
        page.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    pages[0].save(tmp_path / "label.tif", save_all=True, append_images=pages[1:])
    assert read_file(tmp_path / "label.tif", label=True).array[0, :, 0, 0].tolist() == [0, 1, 2]
    assert read_file(tmp_path / "label.tif").array[:, 1, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("unit", "mm"), [("um", 1e-3), ("micron", 1e-3), ("\\u00B5m", 1e-3), ("nm", 1e-6), ("mm", 1), ("cm", 10)]
)
@pytest.mark.parametrize("byteorder", "<>")
def test_voxel_sizes_of_imagej(tmp_path: Path, unit: str, mm: float, byteorder: str) -> None:
    array = voxels()
    about = {"spacing": 2.0, "unit": unit, "axes": "ZYX"}
    path = tmp_path / "case.tif"
    write(path, array, imagej=True, resolution=(4, 2), metadata=about, byteorder=byteorder)
    text = read_file(path)
    assert np.array_equal(text.array, array[None])
    assert text.spacing == pytest.approx((2.0 * mm, 0.5 * mm, 0.25 * mm))
    assert np.allclose(text.affine, np.diag([0.25 * mm, 0.5 * mm, 2 * mm, 1]))
    assert np.array_equal(read_file_header(path)[2], text.affine)


@pytest.mark.parametrize("about", [{"spacing": 2.0}, {"spacing": 2.0, "unit": "pixel"}, {"unit": "furlong"}, {}])
def test_sizes_without_a_known_unit_are_none(tmp_path: Path, about: dict[str, Any]) -> None:
    write(tmp_path / "case.tif", voxels(), imagej=True, resolution=(4, 2), metadata={**about, "axes": "ZYX"})
    assert np.array_equal(read_file(tmp_path / "case.tif").affine, np.eye(4))


OME_SIZES = {"PhysicalSizeX": 0.25, "PhysicalSizeY": 500.0, "PhysicalSizeYUnit": "nm", "PhysicalSizeZ": 0.002,
             "PhysicalSizeZUnit": "mm"}  # fmt: skip


@pytest.mark.parametrize("axes", ["CZYX", "ZCYX"])
def test_channels_and_voxel_sizes_of_ome(tmp_path: Path, axes: str) -> None:
    array = voxels(shape=(3, 2, 4, 5) if axes == "ZCYX" else (2, 3, 4, 5))
    path = tmp_path / "case.ome.tif"
    write(path, array, metadata={"axes": axes, "PhysicalSizeXUnit": "µm", **OME_SIZES})
    text = read_file(path)
    assert np.array_equal(text.array, array.swapaxes(0, 1) if axes == "ZCYX" else array)
    assert text.spacing == pytest.approx((2e-3, 0.5e-3, 0.25e-3))
    assert read_file_header(path)[:2] == ((3, 4, 5), 2)


OME = '<OME xmlns="x"><Image><Pixels DimensionOrder="XYZCT" SizeX="5" SizeY="4" SizeZ="{z}" SizeC="1" SizeT="1">{more}'


@pytest.mark.parametrize(
    "text",
    [
        "ImageJ=1.54\nimages=8\nslices=8\n",
        "ImageJ=1.54\nimages=3\nslices=2\nchannels=2\n",
        OME.format(z=9, more="") + "</Pixels></Image></OME>",
        OME.format(z=3, more='<TiffData IFD="2" FirstZ="0"/>') + "</Pixels></Image></OME>",
        OME.format(z=3, more=""),
        "<OME></OME>",
    ],
)
def test_descriptions_that_do_not_fit(tmp_path: Path, text: str) -> None:
    write(tmp_path / "case.tif", voxels(), description=text, metadata=None)
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match=r"case\.tif: its description does not fit its 3 pages"):
            read(tmp_path / "case.tif")


@pytest.mark.parametrize("odd", [voxels(shape=(4, 6)), voxels("uint8", (4, 5)), voxels("uint8", (4, 5, 3))])
def test_the_page_that_differs_is_named(tmp_path: Path, odd: np.ndarray) -> None:
    with tifffile.TiffWriter(tmp_path / "case.tif") as writer:
        for page in (voxels()[0], voxels()[1], odd):
            writer.write(page, metadata=None, photometric="rgb" if page.ndim == 3 else "minisblack")
    with pytest.raises(ValueError, match=r"case\.tif: holds [23] images, of .*uint16 and"):
        read_file(tmp_path / "case.tif")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Truncated File Read")
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 3)])
def test_a_stack_cut_anywhere_is_refused_unless_its_voxels_are_there(
    tmp_path: Path, compression: str | None, shape: tuple[int, ...]
) -> None:
    path = tmp_path / "cut.tif"
    write(path, voxels("uint8", shape), compression=compression, photometric="rgb" if len(shape) > 3 else "minisblack")
    data, whole, refused = path.read_bytes(), read_file(path).array, 0
    lengths = range(0, len(data), 3)
    for length in lengths:
        path.write_bytes(data[:length])
        try:
            result = read_file(path).array
        except ValueError as error:
            refused += "cut.tif: " in str(error)
        else:
            refused += np.array_equal(result, whole)
    assert refused == len(lengths)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"cut\.tif: "):
        read_file(path)


def test_pages_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.tif"
    write(path, voxels(), metadata=None)
    with tifffile.TiffFile(path) as file:
        last, first = file.pages[-1], file.pages[0].offset
        at = last.offset + 2 + 12 * len(last.tags)
    data = bytearray(path.read_bytes())
    data[at : at + 4] = first.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match="ends inside its list of pages"):
        read_file(path)


def _write_pair(folder: Path, image: dict[str, Any], label: dict[str, Any]) -> Case:
    write(folder / "image.tif", voxels(), **image)
    write(folder / "label.tif", (voxels("uint8") > 100).astype(np.uint8), **label)
    return Case(id="one", image=(folder / "image.tif",), label=folder / "label.tif")


def _in_um(z: float) -> dict[str, Any]:
    return {"imagej": True, "resolution": (4, 4), "metadata": {"spacing": z, "unit": "um", "axes": "ZYX"}}


def test_a_label_that_states_no_voxel_size_fits(tmp_path: Path) -> None:
    for image, label in ((_in_um(2), {}), ({}, _in_um(2)), (_in_um(2), _in_um(2))):
        case = _write_pair(tmp_path, image, label)
        assert read_label(case, {0: "background", 1: "cell"}, read_image(case)).shape == (3, 4, 5)


def _source(folder: Path, *, deep: list[bool]) -> Path:
    for name in ("images", "labels"):
        (folder / name).mkdir()
        for number, each in enumerate(deep):
            array = (voxels("uint8") > 100).astype(np.uint8)
            write(folder / name / f"{number}.tif", array if each else array[0])
    return folder


@pytest.mark.parametrize(("deep", "what"), [([True, False], "a 2-D picture"), ([False, True], "a 3-D image")])
def test_stacks_and_single_pages_do_not_mix(tmp_path: Path, deep: list[bool], what: str) -> None:
    with pytest.raises(ValueError, match=rf"images/1\.tif: is {what}"):
        load_case_set(_source(tmp_path, deep=deep))


def test_an_imagej_stack_beyond_4_gb_is_read_whole(tmp_path: Path) -> None:
    """ImageJ lists one page and puts the others behind it."""
    write(tmp_path / "case.tif", voxels(), imagej=True, metadata={"axes": "ZYX"}, truncate=True)
    assert np.array_equal(read_file(tmp_path / "case.tif").array, voxels()[None])
