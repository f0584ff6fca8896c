from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.cases import nifti
from hasten.cases.nifti import read_nifti, read_nifti_header, write_label_nifti, write_nifti

DTYPES = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64")


def reference(path: Path) -> np.ndarray:
    """(C, D, H, W) by nibabel, with the axes moved one by one."""
    values = np.asanyarray(nib.load(path).dataobj)
    values = values.reshape(*values.shape, *[1] * (4 - values.ndim)) if values.ndim < 4 else values
    return np.moveaxis(values.reshape(*values.shape[:3], -1), (3, 2, 1, 0), (0, 1, 2, 3))


def nifti_bytes(
    values: np.ndarray, affine: np.ndarray, *, big: bool, slope: float, inter: float, version: int = 1
) -> bytes:
    kind, header_kind = (nib.Nifti1Image, nib.Nifti1Header) if version == 1 else (nib.Nifti2Image, nib.Nifti2Header)
    header = header_kind(endianness=">" if big else "<")
    header.set_data_dtype(values.dtype)
    data = bytearray(kind(values, affine, header, dtype=values.dtype).to_bytes())
    # nibabel sets the scaling itself when it writes, so it is put into the bytes afterwards.
    offset, code = (112, "f4") if version == 1 else (176, "f8")
    scaling = np.array([slope, inter], (">" if big else "<") + code).tobytes()
    data[offset : offset + len(scaling)] = scaling
    return bytes(data)


@st.composite
def affines(draw: st.DrawFn) -> np.ndarray:
    axes = draw(st.sampled_from(list(itertools.permutations(range(3)))))
    signs = draw(st.tuples(*[st.sampled_from((-1, 1))] * 3))
    spacing = draw(st.tuples(*[st.sampled_from((0.25, 0.7, 1.0, 5.0))] * 3))
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[:, list(axes)] * np.array(signs) * np.array(spacing)
    affine[:3, 3] = draw(st.tuples(*[st.sampled_from((-120.5, 0.0, 33.25))] * 3))
    return affine


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    affine=affines(),
    big=st.booleans(),
    scaling=st.sampled_from(((1.0, 0.0), (0.0, 0.0), (float("nan"), float("nan")), (2.5, -7.0), (1.0, -1024.0))),
    compressed=st.booleans(),
    version=st.sampled_from((1, 2)),
    seed=st.integers(0, 99),
)
def test_read_agrees_with_nibabel(
    tmp_path_factory: pytest.TempPathFactory, dtype, shape, affine, big, scaling, compressed, version, seed
) -> None:
    low = 0 if dtype.startswith("u") else -100
    values = np.random.default_rng(seed).integers(low, 100, shape).astype(dtype)
    data = nifti_bytes(values, affine, big=big, slope=scaling[0], inter=scaling[1], version=version)
    path = tmp_path_factory.mktemp("nifti") / ("case.nii.gz" if compressed else "case.nii")
    path.write_bytes(gzip.compress(data) if compressed else data)

    volume = read_nifti(path)

    expected = reference(path)
    assert volume.array.shape == expected.shape
    assert volume.array.flags.c_contiguous
    assert volume.array.dtype.isnative
    scaled = scaling in ((2.5, -7.0), (1.0, -1024.0))
    assert volume.array.dtype == (np.dtype("float32") if scaled else np.dtype(dtype))
    np.testing.assert_allclose(volume.array, expected, rtol=1e-6)
    image = nib.load(path)
    np.testing.assert_array_equal(volume.affine, image.affine)
    zooms = (*image.header.get_zooms()[:3], 1.0)[:3]
    np.testing.assert_allclose(volume.spacing[::-1][: len(shape)], zooms[: len(shape)], rtol=1e-5)
    header_shape, num_channels, header_affine = read_nifti_header(path)
    assert (num_channels, *header_shape) == volume.array.shape
    np.testing.assert_array_equal(header_affine, volume.affine)


def save(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nib.save(nib.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path


def test_without_isal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nifti, "igzip", gzip)
    values = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    path = write_nifti(tmp_path / "a.nii.gz", values, np.eye(4))
    np.testing.assert_array_equal(read_nifti(path).array[0], values)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="truncated"):
        read_nifti(path)


def _header(**fields: object) -> bytes:
    header = nib.Nifti1Header()
    header.set_data_shape((4, 4, 4))
    header.set_data_dtype(np.int16)
    header["magic"] = b"n+1"
    header["vox_offset"] = 352
    for name, value in fields.items():
        header[name] = value
    return header.binaryblock + bytes(4 + 128)


BAD = {
    "empty.nii.gz": (b"", "is empty"),
    "text.nii.gz": (b"not an image, but long enough " * 20, "no NIfTI file"),
    "short.nii": (_header()[:200], "inside its header"),
    "gz_of_text.nii.gz": (gzip.compress(b"hello"), "no NIfTI file"),
    "negative.nii": (_header(dim=[3, 4, -4, 4, 1, 1, 1, 1]), "impossible NIfTI header"),
    "datatype.nii": (_header(datatype=999), "impossible NIfTI header"),
    "complex.nii": (_header(datatype=32, bitpix=64), "voxels of type complex64"),
    "flat.nii": (_header(sform_code=1), "affine"),
    "quaternion.nii": (_header(qform_code=1, quatern_b=3), "orientation"),
    "one_axis.nii": (_header(dim=[1, 64, 1, 1, 1, 1, 1, 1]), r"dimensions \(64,\)"),
    "spacing.nii": (_header(pixdim=[1, 1, 1, 0, 1, 1, 1, 1]), r"spacing pixdim\[3\] is 0; set it"),
    "slope.nii": (_header(scl_slope=np.inf), "scaling"),
    "far.nii": (_header(vox_offset=np.inf), "vox_offset inf"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file(tmp_path: Path, name: str) -> None:
    data, what = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=what) as error:
        read_nifti(tmp_path / name)
    assert name in str(error.value)
    if what not in ("scaling",) and "voxels of" not in what:
        with pytest.raises(ValueError, match=name):
            read_nifti_header(tmp_path / name)


def test_truncated(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1000, (20, 20, 20)).astype(np.int16)
    packed = save(tmp_path / "a.nii.gz", values)
    packed.write_bytes(packed.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"a.nii.gz: is a damaged or truncated gzip"):
        read_nifti(packed)
    plain = save(tmp_path / "b.nii", values)
    plain.write_bytes(plain.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"b.nii: the header says .* holds 16351 bytes"):
        read_nifti(plain)
    flipped = bytearray(save(tmp_path / "c.nii.gz", values).read_bytes())
    flipped[-6] ^= 1  # in the checksum
    (tmp_path / "c.nii.gz").write_bytes(flipped)
    with pytest.raises(ValueError, match="damaged"):
        read_nifti(tmp_path / "c.nii.gz")


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_only_padding_may_follow_the_voxels_that_the_header_declares(tmp_path: Path, name: str) -> None:
    values = np.arange(1, 61, dtype=np.int16).reshape(3, 4, 5)
    data = save(tmp_path / "whole.nii", values).read_bytes()
    fewer = nib.Nifti1Header(data[:348])
    fewer.set_data_shape((3, 4, 4))
    for content, refused in (
        (data + bytes(7), False),
        (data + bytes(512), False),
        (data + bytes(513), True),
        (data + b"\0\0\1", True),
        (fewer.binaryblock + data[348:], True),
    ):
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        if refused:
            with pytest.raises(ValueError, match=f"{name}: .* the file holds {len(content)} bytes"):
                read_nifti(tmp_path / name)
        else:
            np.testing.assert_array_equal(read_nifti(tmp_path / name).array[0], values.T)


@settings(max_examples=25, deadline=None)
@given(
    high=st.sampled_from((1, 255, 256, 40_000)),
    dtype=st.sampled_from(("uint8", "int64", "uint16", "bool")),
    affine=affines(),
    ending=st.sampled_from((".nii", ".nii.gz")),
)
def test_label_round_trip(tmp_path_factory: pytest.TempPathFactory, high, dtype, affine, ending) -> None:
    high = {"bool": 1, "uint8": min(high, 255)}.get(dtype, high)
    label = np.random.default_rng(high).integers(0, high, (3, 4, 5), endpoint=True).astype(dtype)
    label.flat[0] = high
    path = tmp_path_factory.mktemp("label") / f"sub/a{ending}"
    assert write_label_nifti(path, label, affine) == path
    image = nib.load(path)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), label.T)
    assert image.get_data_dtype() == ("uint8" if high <= 255 else "int16" if high < 2**15 else "int32")
    np.testing.assert_allclose(image.affine, affine, atol=1e-5)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_label_keeps_the_source_header(tmp_path: Path) -> None:
    affine = np.diag([-0.7, -0.7, 2.0, 1.0])
    header = nib.Nifti1Header()
    header["descrip"] = b"scanner 7"
    header.set_xyzt_units("mm", "sec")
    source = nib.Nifti1Image(np.zeros((5, 4, 3, 2), np.float32), affine, header)
    source.header.set_qform(affine, 1)
    source.header.set_sform(affine, 1)
    source.header["cal_max"] = 400
    source.header["scl_slope"] = 2
    nib.save(source, tmp_path / "image.nii.gz")
    label = np.random.default_rng(0).integers(0, 3, (3, 4, 5)).astype(np.uint8)
    path = write_label_nifti(tmp_path / "out.nii.gz", label, affine, tmp_path / "image.nii.gz")
    image = nib.load(path)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), label.T)
    assert image.get_data_dtype() == np.uint8
    np.testing.assert_allclose(image.affine, affine)
    assert int(image.header["sform_code"]) == int(image.header["qform_code"]) == 1
    assert bytes(image.header["descrip"]).startswith(b"scanner 7")
    assert image.header.get_xyzt_units()[0] == "mm"
    assert float(image.header["cal_max"]) == 0


@pytest.mark.parametrize(("unit", "mm"), [("micron", 1e-3), ("meter", 1e3)])
@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
def test_affine_is_in_mm_and_is_written_back_in_the_unit_of_the_source(
    tmp_path: Path, unit: str, mm: float, kind: type
) -> None:
    affine = np.array([[-0.5, 0.1, 0, 7], [0, 0.6, 0, -8], [0, 0, 2, 9], [0, 0, 0, 1]])
    stated = np.vstack([affine[:3] / mm, affine[3:]])
    image = kind(np.zeros((5, 4, 3), np.int16), stated)
    image.header.set_xyzt_units(unit, "sec")
    nib.save(image, tmp_path / "image.nii.gz")
    volume, (_, _, header_affine) = read_nifti(tmp_path / "image.nii.gz"), read_nifti_header(tmp_path / "image.nii.gz")
    np.testing.assert_allclose(volume.affine, affine, rtol=1e-5)
    np.testing.assert_array_equal(header_affine, volume.affine)
    written = write_label_nifti(
        tmp_path / "label.nii.gz", np.zeros((3, 4, 5), np.uint8), volume.affine, tmp_path / "image.nii.gz"
    )
    np.testing.assert_allclose(nib.load(written).affine, stated, rtol=1e-5)
    assert nib.load(written).header.get_xyzt_units()[0] == unit
    np.testing.assert_allclose(read_nifti(written).affine, affine, rtol=1e-5)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_label_nifti(tmp_path / "a.nii.gz", np.ones((2, 2, 2), np.uint8), np.eye(4))
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_label_nifti(path, np.zeros((2, 2, 2), np.uint8), np.eye(4))
    assert [p.name for p in tmp_path.iterdir()] == ["a.nii.gz"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["label.nii", "label.nii.gz"])
def test_an_axis_that_nifti_1_cant_count_is_written_as_nifti_2(tmp_path: Path, name: str) -> None:
    array = np.arange(40000, dtype=np.int32).reshape(1, 1, 40000)
    affine = np.diag([0.5, 2.0, 3.0, 1.0])
    nib.save(nib.Nifti2Image(array.T.astype(np.int16), affine), tmp_path / "image.nii")
    nib.save(nib.Nifti2Image(array.T[:10].astype(np.int16), affine), tmp_path / "short.nii")
    nib.save(nib.Nifti1Image(array.T[:10].astype(np.int16), affine), tmp_path / "one.nii")
    for like, size, kind in (("image", 40000, 540), (None, 40000, 540), ("short", 10, 540), ("one", 10, 348)):
        source = tmp_path / f"{like}.nii" if like else None
        written = write_nifti(tmp_path / name, array[..., :size], affine, like=source)
        assert nib.load(written).header["sizeof_hdr"] == kind
        assert np.array_equal(read_nifti(written).array[0], array[..., :size])
        assert np.array_equal(read_nifti(written).affine, affine)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("colours", ["RGB", "RGBA"])
def test_a_coloured_voxel_is_three_channels(tmp_path: Path, name: str, colours: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (4, 5, 6, len(colours)), np.uint8)
    voxels = values.view([(colour, "u1") for colour in colours])[..., 0]
    image = nib.Nifti1Image(voxels, np.eye(4))
    nib.save(image, tmp_path / name)
    expected = values[..., :3].T
    assert np.array_equal(read_nifti(tmp_path / name).array, expected)
    assert read_nifti_header(tmp_path / name)[:2] == ((6, 5, 4), 3)
