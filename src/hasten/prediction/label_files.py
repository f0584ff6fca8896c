"""Files of predicted label maps: what they are called, and how each kind is written."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.cases.formats import ending, is_nifti, is_picture
from hasten.cases.itk import TO_RAS, explain_itk_errors
from hasten.cases.nifti import NIFTI_ENDINGS, write_label_nifti
from hasten.cases.nnunet import file_ending_of
from hasten.cases.picture import write_label_picture
from hasten.cases.section import read_section_header
from hasten.cases.types import Case, Volume
from hasten.files import replacing

LABEL_ENDINGS = (".nii.gz", ".nii", ".mha", ".nrrd", ".png", ".tif", ".bmp")
_FLAT = (".png", ".bmp")
_ITK = (".mha", ".nrrd")


def label_names(cases: Sequence[Case], kind: str | None = None) -> list[str]:
    """The name of each case's label map, which ends in `kind`.

    None takes .png for pictures, .tif for sections and .nii.gz for volumes, but for an image folder of an nnU-Net
    data set the ending that its dataset.json names. Raises ValueError for an ending that isn't written, and one of
    pictures for a volume.
    """
    if kind is not None and kind not in LABEL_ENDINGS:
        raise ValueError(f"--ending {kind}: is not written; use one of {', '.join(LABEL_ENDINGS)}")
    stated = {folder: file_ending_of(folder) for folder in {case.image[0].parent for case in cases}}
    names = []
    for case in cases:
        if read_section_header(case.image[0]) is not None:
            if kind not in (None, ".tif"):
                raise ValueError(f"--ending {kind}: {case.image[0]} is so large that its label map is a .tif")
            names.append(f"{case.id}.tif")
            continue
        flat, stated_kind = is_picture(case.image[0]), stated[case.image[0].parent]
        usual = ".png" if flat else ".nii.gz"
        chosen = kind or (stated_kind if stated_kind in LABEL_ENDINGS and (flat or stated_kind not in _FLAT) else usual)
        if chosen in _FLAT and not flat:
            raise ValueError(
                f"--ending {chosen}: {case.image[0]} is a volume; write it as .nii.gz, .mha, .nrrd or .tif"
            )
        names.append(f"{case.id}{chosen}")
    return names


def write_label(target: Path, label: np.ndarray, volume: Volume, case: Case) -> None:
    """Write a label map (D, H, W) of label values where `volume`, the image of `case`, lies; atomically.

    Raises ValueError for a .mha or .nrrd without SimpleITK, and OSError.
    """
    suffix = ending(target)
    if suffix in NIFTI_ENDINGS:
        source = case.image[0]
        write_label_nifti(target, label, volume.affine, like=source if is_nifti(source) else None)
    elif suffix in _ITK:
        _write_itk(target, _smallest(label), volume.affine)
    elif suffix == ".png":
        write_label_picture(target, label)
    else:
        _write_pages(target, _smallest(label))


def _smallest(label: np.ndarray) -> np.ndarray:
    return label.astype(np.uint8 if label.max(initial=0) < 256 else np.uint16)


def _write_itk(target: Path, label: np.ndarray, affine: np.ndarray) -> None:
    with explain_itk_errors(target):
        import SimpleITK as sitk

    physical = TO_RAS @ affine
    spacing = np.sqrt((physical[:3, :3] ** 2).sum(0))
    image = sitk.GetImageFromArray(label)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((physical[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(physical[:3, 3].tolist())
    temporary = target.with_name(f".partial-{target.name}")  # the ending says which format it is
    try:
        with explain_itk_errors(target):
            sitk.WriteImage(image, str(temporary), True)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_pages(target: Path, label: np.ndarray) -> None:
    """A page for each slice: .tif, or .bmp of one."""
    first, *others = [Image.fromarray(page) for page in label]
    content = BytesIO()  # Pillow reads back what it has written of a TIFF
    if ending(target) == ".bmp":
        first.save(content, format="BMP")
    else:
        first.save(content, format="TIFF", save_all=True, append_images=others, compression="tiff_deflate")
    with replacing(target, target.with_name(f".{target.name}.tmp")) as file:
        file.write(content.getbuffer())
