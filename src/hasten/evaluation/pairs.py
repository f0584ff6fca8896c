"""Pairs of predictions and label maps, and the meaning of label values, from names and headers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.cases.dicom import check_is_image
from hasten.cases.entries import load_json
from hasten.cases.formats import named_files, read_file_header
from hasten.cases.image_folders import has_layout, nearest, side_by_side, similar_names
from hasten.cases.labels import find_values, name_values
from hasten.cases.nnunet import declared_classes
from hasten.cases.read import check_affine, warn_misplaced
from hasten.cases.sources import find_listing
from hasten.checkpoint.weights import read_model
from hasten.config.patterns import first_few, listing
from hasten.observe.folds import finished_folds, is_cross_validation
from hasten.observe.rundir import RUN_YAML

log = logging.getLogger(__name__)

Regions = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The two label maps of a case, on one grid."""

    case: str
    prediction: Path
    label: Path
    image: tuple[Path, ...] = ()
    """Files of its image; empty where they are not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """All pairs, and the names of label values and regions."""

    pairs: tuple[Pair, ...]
    labels: dict[int, str]
    """Label value to class name, 0 included."""
    regions: dict[str, tuple[int, ...]]
    """Overlapping classes, name to label values; empty where none are declared."""
    ignore: int | None
    """Label value of voxels that are not scored."""
    predictions: Path
    """The folder of the predictions, or the run that made them."""
    source: Path
    """The folder or data set that the label maps are from."""
    num_labelled: int
    """Cases that `source` has, predicted or not."""

    @property
    def class_names(self) -> list[str]:
        """Foreground classes in the order of their values, which is that of the class indices."""
        return [name for value, name in sorted(self.labels.items()) if value != 0]

    @property
    def members(self) -> dict[str, tuple[int, ...]]:
        """What is scored: each foreground class, and then each region; name to label values."""
        return {**{name: (value,) for value, name in self.labels.items() if value != 0}, **self.regions}

    @property
    def main(self) -> list[str]:
        """Names that the mean of a case is taken over: the regions, or the classes where there are none."""
        return list(self.regions or self.members)


def find_pairs(predictions: Path, labels: Path, run: Path | None = None) -> Pairs:
    """The label maps of two folders, matched by their names without ending.

    predictions: a folder of label maps. labels: another, which then must hold the same cases; or a data set, of which
    the predicted cases are taken. run: names the classes, the regions and data.ignore, also a cross-validation; else
    the data set does, or a dataset.json or labels.json beside the folder, or else the label values that the files hold.

    Raises one ValueError that lists every case that has no counterpart, and every pair on different grids.
    """
    predicted = _folder(predictions, "predictions")
    where, images, names, regions, ignore = _labels(labels)
    of_data_set = _is_data_set(labels)
    alike = similar_names(predicted.keys() - where.keys(), where.keys() - predicted.keys(), str(labels))
    label_of = {case: where.get(case, where.get(alike.get(case, ""))) for case in predicted}
    pairs = [
        Pair(case=case, prediction=predicted[case], label=label, image=images.get(case, ()))
        for case, label in label_of.items()
        if label is not None
    ]
    unknown = [case for case, label in label_of.items() if label is None]
    found = {pair.label for pair in pairs}
    missing = [] if of_data_set else [path for path in where.values() if path not in found]
    beside: dict[Path, float] = {}
    problems = [
        [f"{predicted[case]}: is predicted, but {labels} has no case {case}{nearest(case, where)}" for case in unknown],
        [f"{path}: has no prediction in {predictions}" for path in missing],
        [problem for pair in pairs if (problem := _mismatch(pair, beside)) is not None],
    ]
    count = sum(map(len, problems))
    if count:
        remedy = (
            "give every label map a prediction of the same name, shape and affine; of a data set (its folder or "
            "dataset.json) only the predicted cases are looked at"
        )
        raise ValueError(f"{listing(problems, f'{count} cases cannot be compared')}; {remedy}")
    warn_misplaced(beside, "predictions", "their label map")
    if run is not None:
        content = read_model(finished_folds(run)[0] if is_cross_validation(run) else run)
        names = {int(value): name for value, name in content["labels"].items()}
        regions = {name: tuple(members) for name, members in content.get("regions", {}).items()}
        of_run = content["config"].get("data", {}).get("ignore")
        ignore = ignore if of_run is None else of_run
    if names is None:
        names = _found(pairs, predictions, labels, ignore)
    meaning: dict[str, Any] = {"labels": names, "regions": regions, "ignore": ignore}
    return Pairs(pairs=tuple(pairs), predictions=predictions, source=labels, num_labelled=len(where), **meaning)


def _found(pairs: Sequence[Pair], predictions: Path, labels: Path, ignore: int | None) -> dict[int, str]:
    """The values of both sides as classes; logs a warning where no foreground class is common to them.

    Where both name their segments, names are the classes, and else values.
    """
    paths = [pair.prediction for pair in pairs], [pair.label for pair in pairs]
    found = [find_values(each) for each in paths]
    named = all(any(each.name for each in values.values()) for values in found)
    sides = [
        sorted(each.name if named else str(value) for value, each in values.items() if value not in (0, ignore))
        for values in found
    ]
    if all(sides) and not {name.lower() for name in sides[0]} & {name.lower() for name in sides[1]}:
        log.warning(
            "%s: holds the %s %s, but the label maps of %s hold %s, so every Dice is 0; if they mean the same "
            "classes, store both alike",
            predictions,
            "segments" if named else "values",
            first_few(sides[0]),
            labels,
            first_few(sides[1]),
        )
    return name_values(find_values([*paths[0], *paths[1]]) if named else found[0] | found[1], str(labels), ignore)


def _is_data_set(labels: Path) -> bool:
    return labels.is_file() or (labels.is_dir() and (has_layout(labels) or bool(side_by_side(labels))))


def _labels(
    labels: Path,
) -> tuple[dict[str, Path], dict[str, tuple[Path, ...]], dict[int, str] | None, dict[str, tuple[int, ...]], int | None]:
    """The label map of each case, its image where that is known, label value to name where that is declared,
    the regions, and the ignore label.
    """
    if _is_data_set(labels):
        data_set = find_listing(labels)
        cases = (*data_set.tests, *data_set.cases)
        return (
            {case.id: case.label for case in cases if case.label},
            {case.id: case.image for case in cases},
            data_set.labels,
            data_set.regions,
            data_set.ignore,
        )
    where = _folder(labels, "label maps")
    declared = labels.parent / "dataset.json"
    content = load_json(declared) if declared.is_file() else None
    classes = declared_classes(content, declared, labels.parent)
    return where, {}, classes["labels"], classes.get("regions", {}), classes.get("ignore")


def _folder(folder: Path, what: str) -> dict[str, Path]:
    """The label maps of a folder by name without ending. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name the folder of the {what}")
    if (folder / RUN_YAML).is_file() or is_cross_validation(folder):
        raise ValueError(
            f"{folder}: is a run, whose validation cases `hasten evaluate {folder}` scores; to score others, predict "
            f"them (hasten predict {folder} IMAGE... --out FOLDER), and name that folder"
        )
    named = named_files(folder)
    if not named:
        for file in sorted(each for each in folder.iterdir() if each.is_file()):
            check_is_image(file)
        raise ValueError(f"{folder}: holds no label maps; name the folder of the {what}")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{folder}: holds several files for {first_few(twice)}; keep one of each")
    return dict(named)


def _mismatch(pair: Pair, beside: dict[Path, float]) -> str | None:
    """Why the two files of a pair can't be compared, by their headers; None if they can.

    beside: gets a prediction that lies a little beside its label map, and how far, in voxels.
    """
    try:
        shape, _, affine = read_file_header(pair.prediction)
        label_shape, _, reference = read_file_header(pair.label)
        if shape != label_shape:
            return f"{pair.prediction}: its shape {shape} differs from {label_shape} of {pair.label} (D, H, W)"
        distance = check_affine(affine, pair.prediction, reference, pair.label, shape)
    except ValueError as error:
        return str(error)
    if distance:
        beside[pair.prediction] = distance
    return None
