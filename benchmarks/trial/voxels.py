"""Readable files whose values or geometry make no sense: NaN, constant images, spacings of 0, wrong headers."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.trial.base import CASES, TINY, TINY_2D, entries, image_of, train_args, write_list
from benchmarks.trial.judge import Expect
from benchmarks.trial.run import Box, Command, Trial

# Byte offset and struct code of fields of a NIfTI-1 header.
_FIELDS = {
    "sizeof_hdr": (0, "i"), "dim0": (40, "h"), "dim1": (42, "h"), "dim2": (44, "h"), "dim3": (46, "h"),
    "dim4": (48, "h"), "datatype": (70, "h"), "bitpix": (72, "h"), "pixdim0": (76, "f"), "pixdim1": (80, "f"),
    "pixdim2": (84, "f"), "pixdim3": (88, "f"), "vox_offset": (108, "f"), "scl_slope": (112, "f"),
    "scl_inter": (116, "f"), "qform_code": (252, "h"), "sform_code": (254, "h"), "quatern_b": (256, "f"),
    "srow_x0": (280, "f"), "srow_x3": (292, "f"), "srow_y1": (300, "f"), "srow_z2": (320, "f"),
}  # fmt: skip
_NAN, _INF = float("nan"), float("inf")
HEADERS: dict[str, tuple[dict[str, float], Expect]] = {
    "sizeof_hdr=0": ({"sizeof_hdr": 0}, "either"),
    "sizeof_hdr=540": ({"sizeof_hdr": 540}, "refused"),
    "dim0=0": ({"dim0": 0}, "refused"),
    "dim0=-3": ({"dim0": -3}, "refused"),
    "dim0=8": ({"dim0": 8}, "refused"),
    "dim0=1": ({"dim0": 1}, "refused"),
    "dim0=2": ({"dim0": 2}, "refused"),
    "dim1=0": ({"dim1": 0}, "refused"),
    "dim1=-16": ({"dim1": -16}, "refused"),
    "dim1=32767": ({"dim1": 32767}, "refused"),
    "all-dims-huge": ({"dim1": 32767, "dim2": 32767, "dim3": 32767}, "refused"),
    "dim4=9": ({"dim0": 4, "dim4": 9}, "refused"),
    "dim4=0": ({"dim0": 4, "dim4": 0}, "refused"),
    "datatype=0": ({"datatype": 0}, "refused"),
    "datatype=999": ({"datatype": 999}, "refused"),
    "datatype=1-bit": ({"datatype": 1, "bitpix": 1}, "refused"),
    "datatype=complex": ({"datatype": 32, "bitpix": 64, "dim3": 2}, "refused"),
    "datatype=rgb": ({"datatype": 128, "bitpix": 24}, "refused"),
    "datatype=float128": ({"datatype": 1536, "bitpix": 128}, "refused"),
    "bitpix=8-for-int16": ({"bitpix": 8}, "either"),
    "vox_offset=nan": ({"vox_offset": _NAN}, "refused"),
    "vox_offset=inf": ({"vox_offset": _INF}, "refused"),
    "vox_offset=-352": ({"vox_offset": -352}, "refused"),
    "vox_offset=1e9": ({"vox_offset": 1e9}, "refused"),
    "vox_offset=0": ({"vox_offset": 0}, "either"),
    "vox_offset=100": ({"vox_offset": 100}, "either"),
    "scl_slope=nan": ({"scl_slope": _NAN}, "either"),
    "scl_slope=inf": ({"scl_slope": _INF}, "warned"),
    "scl_slope=0": ({"scl_slope": 0.0}, "either"),
    "scl_slope=1e38": ({"scl_slope": 1e38}, "warned"),
    "scl_inter=nan": ({"scl_slope": 2.0, "scl_inter": _NAN}, "refused"),
    "scl_inter=inf": ({"scl_slope": 2.0, "scl_inter": _INF}, "refused"),
    "spacing=0": ({"pixdim3": 0.0, "sform_code": 0}, "refused"),
    "spacing=nan": ({"pixdim2": _NAN, "sform_code": 0}, "refused"),
    "spacing=inf": ({"pixdim2": _INF, "sform_code": 0}, "refused"),
    "spacing=-1": ({"pixdim2": -1.0, "sform_code": 0}, "either"),
    "spacing=1e20": ({"pixdim1": 1e20, "sform_code": 0}, "refused"),
    "spacing=1e-20": ({"pixdim1": 1e-20, "sform_code": 0}, "refused"),
    "quatern=nan": ({"quatern_b": _NAN, "sform_code": 0, "qform_code": 1}, "refused"),
    "quatern=5": ({"quatern_b": 5.0, "sform_code": 0, "qform_code": 1}, "refused"),
    "sform-row-0": ({"srow_x0": 0.0, "qform_code": 0}, "refused"),
    "sform-nan": ({"srow_y1": _NAN, "qform_code": 0}, "refused"),
    "sform-inf": ({"srow_z2": _INF, "qform_code": 0}, "refused"),
    "sform-origin-nan": ({"srow_x3": _NAN, "qform_code": 0}, "refused"),
    "sform-origin-1e30": ({"srow_x3": 1e30, "qform_code": 0}, "refused"),
}


def _header(fields: dict[str, float], expect: Expect, verb: str, box: Box) -> Command:
    data = bytearray(gzip.decompress(image_of(box.base / "volumes", CASES[1]).read_bytes()))
    for name, value in fields.items():
        at, code = _FIELDS[name]
        struct.pack_into(f"<{code}", data, at, value if code == "f" else int(value))
    (box.folder / "culprit.nii").write_bytes(data)
    return _given(box, "culprit.nii", verb, expect)


def _given(box: Box, name: str, verb: str, expect: Expect) -> Command:
    image = str(box.folder / name)
    if verb == "predict":
        args = ["predict", str(box.base / "run"), image, "--out", "out"]
        return Command(args=args, names=["culprit"], expect=expect)
    cases = entries(box.base / "volumes")
    cases[1]["image"] = image
    # By mean and deviation one voxel changes all others; a window would clip it.
    args = train_args(write_list(box, cases), "prepare.intensity=zscore", settings=TINY)
    return Command(args=args, names=["culprit"], expect=expect)


def _put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float32)
        array[3, 4, 5] = value
        return array

    return change


def _full(value: float, kind: str = "float32") -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full(array.shape, value, kind)


Change = Callable[[np.ndarray], np.ndarray]
VALUES: dict[str, tuple[Change, Expect]] = {
    "one-nan": (_put(_NAN), "refused"),
    "one-inf": (_put(_INF), "refused"),
    "one-minus-inf": (_put(-_INF), "refused"),
    "one-3e38": (_put(3e38), "warned"),
    "one-minus-3e38": (_put(-3e38), "warned"),
    "one-1e20": (_put(1e20), "warned"),
    "all-nan": (_full(_NAN), "refused"),
    "all-inf": (_full(_INF), "refused"),
    "all-0": (_full(0), "warned"),
    "all-0-integer": (_full(0, "int16"), "warned"),
    "all-7": (_full(7), "warned"),
    "all-3e38": (_full(3e38), "warned"),
    "denormal": (lambda array: array.astype(np.float32) * np.float32(1e-42), "either"),
    "scaled-1e30": (lambda array: array.astype(np.float32) * np.float32(1e30), "warned"),
    "offset-1e9": (lambda array: array.astype(np.float64) + 1e9, "warned"),
    "complex": (lambda array: array.astype(np.complex64), "refused"),
    "time-series": (lambda array: np.stack([array] * 3, -1), "refused"),
    "5-d": (lambda array: np.stack([array] * 3, -1)[..., None], "refused"),
    "5-d-time": (lambda array: np.ones((*array.shape, 2, 3), np.float32), "refused"),
    "1-d": (lambda array: array.reshape(-1), "refused"),
    "2-d-slice": (lambda array: array[:, :, 3], "refused"),
    "one-voxel": (lambda array: array[:1, :1, :1], "refused"),
    "other-shape": (lambda array: array[:, :-3], "refused"),
    "transposed": (lambda array: array.transpose(2, 1, 0), "refused"),
    "int64-huge": (lambda array: array.astype(np.int64) + 2**62, "warned"),
    "uint8-mask": (lambda array: (array > 0).astype(np.uint8), "either"),
}
# Of a volume to predict no label says what shape it has, and what lies far from the window of the run is clipped.
_ALONE = {"other-shape", "transposed", "2-d-slice"}


def _values(change: Change, expect: Expect, ending: str, verb: str, box: Box) -> Command:
    import nibabel as nib

    image = nib.load(image_of(box.base / "volumes", CASES[1]))
    array, name = change(np.asarray(image.dataobj)), f"culprit{ending}"
    if ending == ".nii.gz":
        out = nib.Nifti1Image(array, image.affine, dtype=array.dtype)
        nib.save(out, box.folder / name)
    else:
        _save_by_itk(array, image.affine, str(box.folder / name))
    return _given(box, name, verb, expect)


def _save_by_itk(array: np.ndarray, affine: np.ndarray, name: str) -> None:
    import SimpleITK as sitk

    out = sitk.GetImageFromArray(np.ascontiguousarray(array.T))
    to_lps = np.diag([-1, -1, 1.0]) @ affine[:3]
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    out.SetSpacing(spacing.tolist())
    out.SetOrigin(to_lps[:, 3].tolist())
    out.SetDirection((to_lps[:, :3] / spacing).ravel().tolist())
    sitk.WriteImage(out, name)


_BY_ITK = {name for name in VALUES if not name.startswith(("5-d", "1-d", "2-d", "time", "other", "transposed"))}

# Lines of a text header that are replaced, of a sound .nrrd or .mhd.
TEXT_HEADERS: dict[str, dict[str, str]] = {
    ".nhdr": {
        "sizes: 16 16 8": "sizes: 16 16 0|sizes: -16 16 8|sizes: 16 16|sizes: 99999999 99999999 9999|sizes: a b c",
        "type: short": "type: shrot|type: double|type: block",
        "encoding: raw": "encoding: magic",
        "dimension: 3": "dimension: 0|dimension: 99|dimension: -1",
        "endian: little": "endian: sideways",
        "data file: culprit.raw": "data file: nowhere.raw|data file: ../../../../etc/passwd|data file: /dev/zero|"
        "data file: culprit.nhdr|data file: LIST",
    },
    ".mhd": {
        "DimSize = 16 16 8": "DimSize = 16 16 0|DimSize = -16 16 8|DimSize = 16 16|DimSize = 99999999 99999999 9999|"
        "DimSize = a b c",
        "ElementType = MET_SHORT": "ElementType = MET_NONE|ElementType = MET_DOUBLE|ElementType = nonsense",
        "NDims = 3": "NDims = 0|NDims = 99|NDims = -1",
        "ElementSpacing = 1 1 1": "ElementSpacing = 0 1 1|ElementSpacing = nan 1 1|ElementSpacing = -1 1 1|"
        "ElementSpacing = 1e300 1 1",
        "ElementDataFile = culprit.raw": "ElementDataFile = nowhere.raw|ElementDataFile = ../../../../etc/passwd|"
        "ElementDataFile = /dev/zero|ElementDataFile = culprit.mhd|ElementDataFile = LIST",
    },
}


def _text_header(ending: str, line: str, wrong: str, box: Box) -> Command:
    import SimpleITK as sitk

    image = sitk.ReadImage(str(image_of(box.base / "volumes", CASES[1])))
    for key in image.GetMetaDataKeys():
        image.EraseMetaData(key)
    path = box.folder / f"culprit{ending}"
    sitk.WriteImage(image, str(path))
    text = path.read_bytes()
    assert line.encode() in text, (line, text)
    path.write_bytes(text.replace(line.encode(), wrong.encode()))
    sound = "/dev/zero" in wrong or wrong.endswith("= -1 1 1")  # voxels as any other, and a mirrored axis
    return _given(box, path.name, "predict", "either" if sound else "refused")


PICTURES: dict[str, Any] = {
    "colour-among-grey": ("RGB", (32, 32), "refused"), "cmyk": ("CMYK", (32, 32), "refused"),
    "alpha": ("LA", (32, 32), "either"), "palette": ("P", (32, 32), "either"), "one-bit": ("1", (32, 32), "either"),
    "float": ("F", (32, 32), "either"), "one-pixel": ("L", (1, 1), "refused"), "one-row": ("L", (32, 1), "refused"),
    "larger": ("L", (64, 64), "refused"), "all-black": ("L", None, "warned"),
}  # fmt: skip


def _picture(mode: str, size: tuple[int, int] | None, expect: Expect, ending: str, box: Box) -> Command:
    from PIL import Image

    sound = Image.open(image_of(box.base / "pictures", CASES[1]))
    image = Image.new("L", sound.size) if size is None else sound.resize(size).convert(mode)
    image.save(box.folder / f"culprit{ending}")
    cases = entries(box.base / "pictures")
    cases[1]["image"] = str(box.folder / f"culprit{ending}")
    args = train_args(write_list(box, cases), settings=TINY_2D)
    return Command(args=args, names=["culprit"], expect=expect)


def _declared_size(width: int, height: int, box: Box) -> Command:
    """A PNG that says it is of that size: a decompression bomb, or nothing at all."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
    (box.folder / "culprit.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b""))
    args = ["predict", str(box.base / "flat-run"), "culprit.png", "--out", "out"]
    return Command(args=args, names=["culprit"])


def trials() -> Iterator[Trial]:
    for name, (fields, expect) in HEADERS.items():
        for verb in ("train", "predict"):
            wanted: Expect = "either" if verb == "predict" and name == "sform-origin-1e30" else expect
            yield Trial("voxels", f"header/{name}/{verb}", partial(_header, fields, wanted, verb))
    for name, (change, expect) in VALUES.items():
        for verb in ("train", "predict"):
            wanted = "either" if verb == "predict" and (name in _ALONE or expect == "warned") else expect
            for ending in (".nii.gz", ".mha", ".nrrd") if name in _BY_ITK else (".nii.gz",):
                act = partial(_values, change, wanted, ending, verb)
                if not (name == "one-voxel" and verb == "predict"):
                    yield Trial("voxels", f"{name}{ending}/{verb}", act)
    for ending, lines in TEXT_HEADERS.items():
        for line, several in lines.items():
            for wrong in several.split("|"):
                yield Trial("voxels", f"{ending}/{wrong}", partial(_text_header, ending, line, wrong))
    for name, (mode, size, expect) in PICTURES.items():
        for ending in (".tif",) if name in ("cmyk", "float") else (".png", ".tif"):
            yield Trial("voxels", f"picture/{name}{ending}", partial(_picture, mode, size, expect, ending))
    for width, height in ((0, 32), (32, 0), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (12_000, 12_000)):
        yield Trial("voxels", f"picture/declared-{width}x{height}", partial(_declared_size, width, height))
