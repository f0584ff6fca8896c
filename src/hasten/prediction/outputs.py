"""The output files of a prediction: checked before anything is computed, what they are called and how each is written.

prediction.json holds the settings behind the label maps of a folder, by which a later prediction can resume.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hasten.cases.formats import ending, is_nifti, is_picture
from hasten.cases.itk import TO_RAS, explain_itk_errors
from hasten.cases.nifti import NIFTI_ENDINGS, write_label_nifti
from hasten.cases.nnunet import file_ending_of
from hasten.cases.picture import write_label_picture
from hasten.cases.types import Case, Volume
from hasten.config.resume_rules import text_of
from hasten.files import hash_file, make_writable, replacing, same_files, size_of
from hasten.prediction.ensemble import Member
from hasten.prediction.postprocess import Cleanings
from hasten.system import replace_file, reserve, sync_folder

PREDICTION_JSON = "prediction.json"


def label_targets(
    files: Sequence[Sequence[Path]],
    cases: Sequence[Case],
    *,
    overwrite: bool,
    since: float | None = None,
    sizes: Mapping[str, int] | None = None,
) -> list[bool]:
    """Whether each case is to be written. Raises ValueError where one can't be, or would replace something.

    files: those of each case, its label map first. since: label maps that were written after this time, with all that
    belongs to them and from these images, are whole and stay. None keeps none. sizes: name of a label map to the bytes
    of the image that it was predicted from.
    """
    targets = [target for of_case in files for target in of_case]
    if twice := same_files(targets):
        same = [str(case.image[0]) for case, of_case in zip(cases, files, strict=True) if {*twice} & {*of_case}]
        raise ValueError(f"{twice[0]}: {' and '.join(same)} would both be written there; give each its own --out")
    # By file number, which also knows links and file systems that take A for a.
    inputs = {_number(image) for case in cases for image in case.image}
    for target in targets:
        if target.exists() and _number(target) in inputs:
            raise ValueError(f"{target}: is an input; choose another --out")
    to_write = []
    for of_case, case in zip(files, cases, strict=True):
        existing = [each for each in of_case if each.exists()]
        problem = _why_not_kept(of_case, case, since, (sizes or {}).get(of_case[0].name))
        if problem and existing and not overwrite:
            raise ValueError(f"{existing[0]}: {problem}; add --overwrite to replace it, or choose another --out")
        to_write.append(bool(problem))
    return to_write


def _why_not_kept(of_case: Sequence[Path], case: Case, since: float | None, size: int | None) -> str:
    """Why the files of a case can't stay; "" if they can. size: bytes of the image that they were predicted from."""
    if since is None:
        return "exists"
    written = min((each.stat().st_mtime if each.exists() else -1.0) for each in of_case)
    if written < since:
        return f"was written before the settings in {PREDICTION_JSON}, or not all that belongs to it is there"
    image_time = max(path.stat().st_mtime for path in case.image)
    if written < image_time or size not in (None, size_of(case.image)):
        return f"was predicted from another image than {case.image[0]} is now"
    return ""


def _number(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@contextmanager
def write_errors(
    target: Path, what: str = "cannot be written", remedy: str = "free some space or choose another --out"
) -> Iterator[None]:
    """An OSError inside is a ValueError that names `target` and the remedy."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{target}: {what} ({error.strerror}); {remedy}") from None


def write_file(target: Path, data: bytes) -> None:
    """Write a file, whole or not at all, and the folders above it. Raises ValueError."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(data)
        sync_folder(target.parent)


def make_folder(out: Path) -> bool:
    """Make `out` ready for writing, and return whether it is new. Raises ValueError where that fails."""
    is_new = not out.exists()
    with write_errors(out, "cannot be written to", "choose another --out"):
        make_writable(out)
    return is_new


def scratch(out: Path, shape: Sequence[int]) -> np.ndarray:
    """Float16 zeros (K, D, H, W) in a file in `out` that has no name and ends with the array.

    Raises ValueError where the disk has no room for it.
    """
    size = 2 * prod(shape)
    what = f"has no room for {size / 1e9:.2g} GB of probabilities"
    remedy = "free some space, choose another --out or leave out --probabilities"
    with write_errors(out, what, remedy), tempfile.TemporaryFile(dir=out) as file:
        # Space that is reserved can't run out later, when a write through the mapping would kill the process.
        reserve(file, size)
        return np.memmap(file, np.float16, "r+", shape=tuple(shape))


def write_probabilities(target: Path, array: np.ndarray, classes: Sequence[str]) -> None:
    """Write a compressed .npz with `probabilities` (K, D, H, W) and the names of its `classes` (K,); atomically.

    Raises OSError.
    """
    with replacing(target, target.with_name(f".partial-{target.name}")) as file:
        np.savez_compressed(file, probabilities=array, classes=np.array(classes))


def deciding_settings(members: Sequence[Member], cleanings: Cleanings) -> dict[str, Any]:
    """The content of prediction.json: everything that the label maps of these networks depend on."""
    infer = members[0].content["config"]["infer"]
    return {
        "networks": {str(member.where): hash_file(member.where) for member in members},
        "infer": {name: value for name, value in infer.items() if name != "batch_size"},
        "postprocessing": {str(value): asdict(cleaning) for value, cleaning in cleanings.items()},
    }


def written_since(out: Path, settings: dict[str, Any], *, overwrite: bool) -> float:
    """The time of `out`/prediction.json, after which label maps were written with these settings.

    Infinity without such a file. Where it holds other settings, infinity with `overwrite`, else a ValueError.
    """
    path = out / PREDICTION_JSON
    before = read_settings(path)
    differences = _differences(before, settings) if before is not None else []
    if before is None or (differences and overwrite):
        return float("inf")
    if differences:
        lines = "\n  ".join(differences)
        raise ValueError(
            f"{path}: the label maps beside it were predicted otherwise; predict as before, choose another --out, or "
            f"add --overwrite to replace them\n  {lines}"
        )
    return path.stat().st_mtime


def recorded(out: Path, what: Literal["images", "training_cases"]) -> dict[str, Any]:
    """What prediction.json says of label maps in `out`, by their names.

    images: bytes of the image that each was predicted from. training_cases: of cases that the networks were trained on,
    the runs of these.
    """
    return (read_settings(out / PREDICTION_JSON) or {}).get(what, {})


def write_settings(
    out: Path, settings: dict[str, Any], sizes: Mapping[str, int], trained: Mapping[str, Sequence[str]]
) -> None:
    """Write `out`/prediction.json. One with the same settings keeps its time and what it says of other label maps.

    trained: as `recorded` gives them. Raises ValueError.
    """
    path = out / PREDICTION_JSON
    before, time = read_settings(path), None
    content = {**settings, "images": dict(sizes), "training_cases": dict(trained)}
    if before is not None and not _differences(before, settings):
        time = path.stat().st_mtime_ns
        others = {name: runs for name, runs in before.get("training_cases", {}).items() if name not in sizes}
        images = {**before.get("images", {}), **sizes}
        content = {**before, "images": images, "training_cases": {**others, **trained}}
        if content == before:
            return
    write_file(path, f"{json.dumps(content, indent=2)}\n".encode())
    if time is not None:
        os.utime(path, ns=(time, time))


def read_settings(path: Path) -> dict[str, Any] | None:
    """None for a file that is missing, or that Hasten did not write."""
    try:
        content = json.loads(path.read_bytes())
        return content if {"networks", "infer", "postprocessing"} <= set(content) else None
    except (OSError, ValueError, TypeError):
        return None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    now = json.loads(json.dumps(now))  # tuples become lists
    differences = []
    one, two = before["networks"], now["networks"]
    if sorted(one.values()) != sorted(two.values()):
        changed = [where for where in two if where in one and one[where] != two[where]]
        other = f"{', '.join(two)} instead of {', '.join(one)}"
        differences.append(f"networks: {', '.join(changed)} changed since" if changed else f"networks: {other}")
    for section in ("infer", "postprocessing"):
        was, has = before[section], now[section]
        names = dict.fromkeys((*was, *has))
        differences += [
            f"{section}.{name}={text_of(has.get(name))} instead of {text_of(was.get(name))}"
            for name in names
            if was.get(name) != has.get(name)
        ]
    return differences


LABEL_ENDINGS = (".nii.gz", ".nii", ".mha", ".nrrd", ".png", ".tif")
_ITK = (".mha", ".nrrd")


def label_names(cases: Sequence[Case], kind: str | None = None) -> list[str]:
    """The name of each case's label map, which ends in `kind`.

    None takes .png for pictures and .nii.gz for volumes, but for an image folder of an nnU-Net
    data set the ending that its dataset.json names. Raises ValueError for an ending that isn't written, and one of
    pictures for a volume.
    """
    if kind is not None and kind not in LABEL_ENDINGS:
        raise ValueError(f"--ending {kind}: is not written; use one of {', '.join(LABEL_ENDINGS)}")
    stated = {folder: file_ending_of(folder) for folder in {case.image[0].parent for case in cases}}
    names = []
    for case in cases:
        flat, stated_kind = is_picture(case.image[0]), stated[case.image[0].parent]
        usual = ".png" if flat else ".nii.gz"
        chosen = kind or (stated_kind if stated_kind in LABEL_ENDINGS and (flat or stated_kind != ".png") else usual)
        if chosen == ".png" and not flat:
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
        import tifffile

        with replacing(target) as file:  # a page for each slice
            tifffile.imwrite(file, _smallest(label), compression="zlib", photometric="minisblack", metadata=None)


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
        replace_file(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
