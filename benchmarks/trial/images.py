"""Image files of every format that are cut off, altered or no files at all, given to `train` and to `predict`."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.trial.base import CASES, TINY, TINY_2D, entries, image_of, train_args, write_list
from benchmarks.trial.judge import Expect
from benchmarks.trial.run import Box, Command, Trial

CULPRIT = "culprit"
"""In the name of every bad file, so that a message that names it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    name: str
    ending: str
    data: Literal["volumes", "pictures"] = "volumes"
    part: str = ""
    """Ending of the file that is spoilt, where an image is several."""


FORMATS = (
    Format(name="nifti", ending=".nii"),
    Format(name="nifti-gz", ending=".nii.gz"),
    Format(name="nrrd", ending=".nrrd"),
    Format(name="nhdr-header", ending=".nhdr"),
    Format(name="nhdr-voxels", ending=".nhdr", part=".raw.gz"),
    Format(name="mha", ending=".mha"),
    Format(name="mhd-header", ending=".mhd"),
    Format(name="mhd-voxels", ending=".mhd", part=".raw"),
    Format(name="dicom", ending=""),
    Format(name="tiff-stack", ending=".tif"),
    Format(name="png", ending=".png", data="pictures"),
    Format(name="jpeg", ending=".jpg", data="pictures"),
    Format(name="tiff", ending=".tif", data="pictures"),
    Format(name="bmp", ending=".bmp", data="pictures"),
)


def write_image(form: Format, source: Path, stem: Path) -> Path:
    """A sound image in a format, from one of the base; the file that names it, or its folder."""
    target = stem.with_name(stem.name + form.ending)
    if form.data == "pictures":
        from PIL import Image

        Image.open(source).convert("L").save(target)
    elif form.ending == ".nii":
        import nibabel as nib

        nib.save(nib.load(source), target)
    elif form.ending == ".nii.gz":
        shutil.copy(source, target)
    elif form.name == "tiff-stack":
        import nibabel as nib
        from PIL import Image

        pages = [Image.fromarray(page.astype("uint16")) for page in (nib.load(source).get_fdata().T + 1024).clip(0)]
        pages[0].save(target, save_all=True, append_images=pages[1:])
    else:
        _by_itk(source, target)
    return target


def _by_itk(source: Path, target: Path) -> None:
    import SimpleITK as sitk

    image = sitk.ReadImage(str(source))
    for key in image.GetMetaDataKeys():  # which other formats can't hold, and would say so
        image.EraseMetaData(key)
    if target.suffix:
        sitk.WriteImage(image, str(target), target.suffix == ".nhdr")
        return
    target.mkdir()
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    writer.SetImageIO("GDCMImageIO")
    turn = image.GetDirection()
    for number in range(image.GetDepth()):
        part = image[:, :, number]
        for key, value in {
            "0008|0060": "CT", "0020|000e": "1.2.3", "0020|000d": "1.2", "0008|0018": f"1.2.3.{number + 1}",
            "0020|0037": "\\".join(f"{turn[at]:.6f}" for at in (0, 3, 6, 1, 4, 7)),
            "0020|0032": "\\".join(f"{mm:.6f}" for mm in image.TransformIndexToPhysicalPoint((0, 0, number))),
            "0020|0013": str(number + 1), "0028|1053": "1", "0028|1052": "0",
        }.items():  # fmt: skip
            part.SetMetaData(key, value)
        writer.SetFileName(str(target / f"culprit-{number:02d}.dcm"))
        writer.Execute(part)


def _cut(share: float, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def _cut_end(count: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def _random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(max(64, path.stat().st_size)))


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _no_magic(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(16) + data[16:])


def _web_page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html><body>403 Forbidden: sign in to download</body></html>")


def _flip(seed: int, path: Path) -> None:
    """Flip eight bits in what is a header in most formats, its first 400 bytes."""
    data, draw = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(8):
        data[draw.randrange(min(400, len(data)))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _surplus(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"surplus" * 20)


def _in_place(make: Callable[[Path], object], path: Path) -> None:
    path.unlink()
    make(path)


Spoil = Callable[[Path], object]
SPOILT: dict[str, tuple[Spoil, Expect]] = {
    "empty": (lambda path: path.write_bytes(b""), "refused"),
    "one-byte": (lambda path: path.write_bytes(b"\x1f"), "refused"),
    "cut-at-3-percent": (partial(_cut, 0.03), "refused"),
    "cut-at-half": (partial(_cut, 0.5), "refused"),
    "cut-before-end": (partial(_cut_end, 40), "refused"),
    "random-bytes": (_random_bytes, "refused"),
    "zeros": (_zeros, "refused"),
    "no-magic": (_no_magic, "refused"),
    "web-page": (_web_page, "refused"),
    "flips-0": (partial(_flip, 0), "either"),
    "flips-1": (partial(_flip, 1), "either"),
    "flips-2": (partial(_flip, 2), "either"),
    "surplus": (_surplus, "either"),
    "folder": (partial(_in_place, Path.mkdir), "refused"),
    "dangling-link": (partial(_in_place, lambda path: path.symlink_to("nowhere")), "refused"),
    "link-loop": (partial(_in_place, lambda path: path.symlink_to(path.name)), "refused"),
    "fifo": (partial(_in_place, os.mkfifo), "refused"),
    "endless-device": (partial(_in_place, lambda path: path.symlink_to("/dev/zero")), "refused"),
}
_HARMLESS = {
    # The voxels of a raw file may be any bytes, and what a slice or a picture lacks at its very end is padding.
    ("mhd-voxels", "random-bytes"), ("mhd-voxels", "no-magic"), ("dicom", "no-magic"),
    ("png", "cut-before-end"), ("jpeg", "cut-before-end"), ("nifti-gz", "surplus"),
    ("tiff-stack", "cut-before-end"), ("tiff", "cut-before-end"),
}  # fmt: skip
_ALL_ZERO = {(form, name) for form in ("mhd-voxels", "nhdr-voxels") for name in ("zeros", "endless-device")} - {
    ("nhdr-voxels", "zeros")
}


def _expected(form: Format, name: str, expect: Expect, verb: str) -> Expect:
    if (form.name, name) in _ALL_ZERO:
        return "warned" if verb == "train" else "either"
    return "either" if (form.name, name) in _HARMLESS else expect


def _spoilt(form: Format, spoil: Spoil, expect: Expect, verb: str, box: Box) -> Command:
    data = box.base / form.data
    image = write_image(form, image_of(data, CASES[1]), box.folder / CULPRIT)
    target = image
    if form.part:
        target = image.with_suffix("").with_name(CULPRIT + form.part)
    elif image.is_dir():
        target = image / "culprit-03.dcm"
    spoil(target)
    if verb == "predict":
        run = box.base / ("run" if form.data == "volumes" else "flat-run")
        return Command(args=["predict", str(run), str(image), "--out", "out"], names=[CULPRIT], expect=expect)
    cases = entries(data)
    cases[1]["image"] = str(image)
    settings = TINY if form.data == "volumes" else TINY_2D
    return Command(args=train_args(write_list(box, cases), settings=settings), names=[CULPRIT], expect=expect)


def _bomb(box: Box) -> Command:
    """512 MiB of zeros behind a sound header, from half a megabyte."""
    import nibabel as nib

    head = nib.load(image_of(box.base / "volumes", CASES[1])).header.binaryblock
    with gzip.open(box.folder / "culprit.nii.gz", "wb", compresslevel=1) as file:
        file.write(head + bytes(4))
        for _ in range(512):
            file.write(bytes(1 << 20))
    args = ["predict", str(box.base / "run"), "culprit.nii.gz", "--out", "out"]
    return Command(args=args, names=[CULPRIT], expect="either")


def _wrong_sum(box: Box) -> Command:
    data = bytearray(image_of(box.base / "volumes", CASES[1]).read_bytes())
    data[-8] ^= 0xFF
    (box.folder / "culprit.nii.gz").write_bytes(data)
    args = ["predict", str(box.base / "run"), "culprit.nii.gz", "--out", "out"]
    return Command(args=args, names=[CULPRIT])


NAMES = {
    "colour": "cul\x1b[31mprit", "title": "cul\x1b]0;owned\x07prit", "newline": "cul\nprit\nerror: all is well",
    "return": "cul\rprit", "bell": "cul\aprit", "bidi": "cul\u202eprit", "long": "cul" + "x" * 230, "dash": "-culprit",
    "unicode": "culprit-Größe-脾臓", "not-utf8": os.fsdecode(b"cul\xff\xfeprit"), "blanks": " cul prit ",
    "quotes": "cul'\"prit", "dollar": "cul$HOME`id`prit", "percent": "cul%s{0}prit", "c1": "cul\x9b31mprit",
}  # fmt: skip


def _named(name: str, sound: bool, verb: str, box: Box) -> Command:
    image = box.folder / f"{name}.nii.gz"
    image.write_bytes(image_of(box.base / "volumes", CASES[1]).read_bytes() if sound else b"no image")
    expect: Expect = "accepted" if sound else "refused"
    if verb == "predict":
        # Each name begins with a folder, as a shell's completion would have it where a dash comes first.
        args = ["predict", str(box.base / "run"), f"./{image.name}", "--out", "out"]
        return Command(args=args, names=["cul"], expect=expect)
    for folder in ("images", "labels"):
        (box.folder / "set" / folder).mkdir(parents=True)
    for at, case in enumerate(CASES):
        stem = name if at == 1 else case
        shutil.copy(image_of(box.base / "volumes", case), box.folder / "set" / "images" / f"{stem}.nii.gz")
        shutil.copy(label_path(box, case), box.folder / "set" / "labels" / f"{stem}.nii.gz")
    if not sound:
        (box.folder / "set" / "images" / f"{name}.nii.gz").write_bytes(b"no image")
    return Command(args=train_args("set"), names=["cul"], expect=expect)


def label_path(box: Box, case: str) -> Path:
    return box.base / "volumes" / "labelsTr" / f"{case}.nii.gz"


def trials() -> Iterator[Trial]:
    for form in FORMATS:
        for name, (spoil, expect) in SPOILT.items():
            for verb in ("train", "predict"):
                act = partial(_spoilt, form, spoil, _expected(form, name, expect, verb), verb)
                yield Trial("images", f"{form.name}/{name}/{verb}", act)
    yield Trial("images", "nifti-gz/bomb/predict", _bomb)
    yield Trial("images", "nifti-gz/wrong-checksum/predict", _wrong_sum)
    for name, text in NAMES.items():
        for verb in ("train", "predict"):
            for sound in (True, False):
                kind = "sound" if sound else "spoilt"
                yield Trial("names", f"{name}/{kind}/{verb}", partial(_named, text, sound, verb))
