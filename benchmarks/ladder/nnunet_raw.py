"""A task's cases in nnU-Net's own layout: links to the files that nnU-Net reads as they are, NIfTI copies of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ladder.task import Task, TaskCase
from hasten.cases.formats import ending, read_file, read_file_header
from hasten.cases.nifti import write_label_nifti, write_nifti
from hasten.cases.read import read_image, read_label
from hasten.cases.types import Case
from hasten.config.regions import painted_values

DATASET = "Dataset001_Task"
_LINKED = (".nii.gz", ".nrrd", ".mha")
_COPIED_AS = ".nii.gz"


def write_raw(task: Task, raw: Path) -> Path:
    """Make nnUNet_raw/`DATASET` of the task's cases; returns its folder.

    Label values become class indices, which nnU-Net needs to follow each other: label maps that hold them already are
    linked. Classes that overlap are nnU-Net's regions. Raises ValueError for a case that cannot be read.
    """
    folder = raw / DATASET
    cases = [*task.train, *task.validation]
    images, labels = folder / "imagesTr", folder / "labelsTr"
    for made in (images, labels):
        made.mkdir(parents=True)
    kinds = {ending(Path(name)) for case in cases for name in (*case.image, case.label)}
    as_they_are = len(kinds) == 1 and kinds <= set(_LINKED) and _follow_each_other(task.labels)
    kind = kinds.pop() if as_they_are else _COPIED_AS
    for case in cases:
        _place_image(case, images, kind)
        _place_label(case, labels / f"{case.id}{kind}", task, kind)
    (folder / "dataset.json").write_text(json.dumps(dataset_json(task, kind), indent=1))
    return folder


def dataset_json(task: Task, kind: str) -> dict[str, Any]:
    """nnU-Net's description of the task, whose files end in `kind`."""
    index = {value: position for position, value in enumerate(sorted(task.labels))}
    content: dict[str, Any] = {
        "channel_names": {str(number): name for number, name in enumerate(task.channels)},
        "labels": {"background": 0},
        "numTraining": len(task.train) + len(task.validation),
        "file_ending": kind,
    }
    if task.regions:
        content["labels"] |= {name: [index[value] for value in members] for name, members in task.regions.items()}
        painted = painted_values(task.regions, task.region_values)
        content["regions_class_order"] = [index[painted[name]] for name in task.regions]
    else:
        content["labels"] |= {name: index[value] for value, name in task.labels.items() if value}
    return content


def write_split(task: Task, preprocessed: Path) -> None:
    """The task's split as nnU-Net's only fold."""
    split = {"train": [case.id for case in task.train], "val": [case.id for case in task.validation]}
    (preprocessed / DATASET / "splits_final.json").write_text(json.dumps([split]))


def read_classes(case: TaskCase, task: Task) -> np.ndarray:
    """The case's label map as class index, (D, H, W) uint8, on the voxels of its files. Raises ValueError."""
    known = as_case(case)
    return read_label(known, task.labels, read_image(known))


def as_case(case: TaskCase) -> Case:
    return Case(id=case.id, image=tuple(Path(name) for name in case.image), label=Path(case.label))


def _place_image(case: TaskCase, images: Path, kind: str) -> None:
    number = 0
    for name in case.image:
        source = Path(name)
        if _is_linked(source, kind):
            (images / f"{case.id}_{number:04d}{kind}").symlink_to(source)
            number += 1
            continue
        volume = read_file(source)
        for channel in volume.array:
            write_nifti(images / f"{case.id}_{number:04d}{kind}", channel, volume.affine)
            number += 1


def _place_label(case: TaskCase, target: Path, task: Task, kind: str) -> None:
    source = Path(case.label)
    if _is_linked(source, kind) and _follow_each_other(task.labels):
        target.symlink_to(source)
        return
    known = as_case(case)
    image = read_image(known)
    write_label_nifti(target, read_label(known, task.labels, image), image.affine)


def _is_linked(source: Path, kind: str) -> bool:
    """Whether nnU-Net reads a file as Hasten does: one channel, or the fourth axis of a NIfTI file."""
    if source.is_dir() or ending(source) != kind:
        return False
    if read_file_header(source)[1] == 1:
        return True
    if kind != _COPIED_AS:
        return False
    import nibabel as nib

    return len(nib.load(source).shape) == 4


def _follow_each_other(labels: dict[int, str]) -> bool:
    return sorted(labels) == list(range(len(labels)))
