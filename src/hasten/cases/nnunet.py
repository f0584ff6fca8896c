"""nnU-Net v2 data sets as they are: nnUNet_raw/DatasetNNN_Name with dataset.json, imagesTr/ID_0000 and labelsTr/ID."""

from __future__ import annotations

import logging
import os
import re
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.cases.entries import Listing, case_from_entry, join_entries, load_json
from hasten.cases.formats import ENDINGS, ending, named_files, read_file_header
from hasten.cases.image_folders import declared_labels, refuse_unread
from hasten.cases.labels import as_number, parse_labels, split_ignore
from hasten.cases.locate import FileLocator
from hasten.cases.types import Case
from hasten.config.patterns import first_few

log = logging.getLogger(__name__)

_MOST_DIGITS = 10
"""Digits of a channel number, plus one."""
_NAME = re.compile(r"(.+)_(\d{4})")


def is_nnunet(content: Any) -> bool:
    """Whether a dataset.json is nnU-Net v2's and lists no cases under "training", as the Decathlon's does."""
    if not isinstance(content, dict):
        return False
    entries = content.get("training")
    listed = isinstance(entries, list) and any(isinstance(entry, dict) for entry in entries)
    return not listed and ("file_ending" in content or isinstance(content.get("dataset"), dict))


def read_nnunet(path: Path, content: dict[str, Any], place: FileLocator) -> Listing:
    """The training cases of a dataset.json for which `is_nnunet` holds; imagesTs is left out.

    Labels with several values are regions, and the label "ignore" is no class. Raises ValueError for a case that lacks
    a channel or its label map, for another number of cases than numTraining, and for what else nnU-Net would refuse,
    naming the file.
    """
    channels = channel_names(content, path)
    if channels is None:
        raise ValueError(f'{path}: has no "channel_names"; add them, as in {{"0": "CT"}}.')
    if "labels" not in content:
        raise ValueError(f'{path}: has no "labels"; add them, as in {{"background": 0, "spleen": 1}}.')
    if "dataset" in content:
        fields = _listed_cases(path, content["dataset"], place)
    else:
        fields = {"cases": _folder_cases(path, place, _file_ending(content), channels)}
    _check_count(path, as_number(content.get("numTraining")), len(fields["cases"]))
    return declared_listing(path, content, place, **fields)


def declared_listing(path: Path, content: dict[str, Any], place: FileLocator, **cases: Any) -> Listing:
    """The listing of a dataset.json, whose labels may be those of a labels.json beside it, or undeclared.

    cases: its fields that the cases give. Raises ValueError.
    """
    channels = channel_names(content, path)
    labels, ignore = declared_labels(place.folder), None
    regions: dict[str, tuple[int, ...]] = {}
    region_values: dict[str, int] = {}
    if "labels" in content:
        declared, ignore = split_ignore(content["labels"], str(path))
        labels, regions, region_values = labels_and_regions(declared, content.get("regions_class_order"), path)
    return Listing(
        name=str(content.get("name") or place.folder.name),
        source=path,
        labels=labels,
        channels=channels,
        modality=channels[0] if channels else "",
        regions=regions,
        region_values=region_values,
        ignore=ignore,
        **cases,
    )


def channel_names(content: dict[str, Any], path: Path) -> tuple[str, ...] | None:
    """The names of "channel_names" or "modality" of a dataset.json, in the order of their numbers, or None.

    Raises ValueError.
    """
    key = "channel_names" if "channel_names" in content else "modality"
    raw = content.get(key)
    if not raw:
        return None
    if isinstance(raw, str):
        return (raw,)
    if isinstance(raw, list) and all(isinstance(name, str) for name in raw):
        return tuple(raw)
    if isinstance(raw, dict) and all(index.isdecimal() and len(index) < _MOST_DIGITS for index in raw):
        return tuple(str(raw[index]) for index in sorted(raw, key=int))
    raise ValueError(
        f'{path}: "{key}" must map channel numbers to names, as in {{"0": "CT"}}, not {reprlib.repr(raw)}.'
    )


def labels_and_regions(
    raw: object, order: object, path: Path
) -> tuple[dict[int, str], dict[str, tuple[int, ...]], dict[str, int]]:
    """Label values with their names, regions with their values, and what each region is painted with.

    Where no label has several values there are no regions. Else every label but the background is one, in the order
    of the file, painted with its entry of `regions_class_order`; a value is named by the region that is that value
    alone, or value_N. Raises ValueError.
    """
    if not isinstance(raw, dict) or not any(isinstance(entry, list) for entry in raw.values()):
        return parse_labels(raw, str(path)), {}, {}
    regions: dict[str, tuple[int, ...]] = {}
    for name, entry in raw.items():
        values = entry if isinstance(entry, list) else [entry]
        if not values or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise ValueError(f'{path}: label "{name}" is {entry!r}; give its value or a list of its values, as [1, 2].')
        if 0 in values and set(values) != {0}:
            raise ValueError(f'{path}: the region "{name}" holds the background, 0; leave it out of {list(values)}.')
        regions[name] = tuple(sorted(set(values)))
    names = {values[0]: name for name, values in regions.items() if len(values) == 1}
    flat = {str(value): names.get(value, f"value_{value}") for values in regions.values() for value in values}
    labels = parse_labels(flat, str(path))
    regions = {name: values for name, values in regions.items() if values != (0,)}
    if all(len(values) == 1 for values in regions.values()):
        return labels, {}, {}
    return labels, regions, _region_values(order, regions, path)


def _region_values(order: object, regions: dict[str, tuple[int, ...]], path: Path) -> dict[str, int]:
    """The label value of each region, later ones over earlier ones; {} if the file has no "regions_class_order"."""
    if order is None:
        return {}
    order = [as_number(value) for value in order] if isinstance(order, list) else order
    example = [values[0] for values in regions.values()]
    if not isinstance(order, list) or len(order) != len(regions) or not all(type(value) is int for value in order):
        raise ValueError(
            f'{path}: "regions_class_order" is {order!r}, but the {len(regions)} regions ({", ".join(regions)}) need '
            f"one label value each, in that order, as in {example}."
        )
    for (name, values), value in zip(regions.items(), order, strict=True):
        if value not in values:
            raise ValueError(
                f'{path}: "regions_class_order" paints the region "{name}" with {value}, which is not one of its '
                f"values {list(values)}; put them in the order of the labels."
            )
    return dict(zip(regions, order, strict=True))


def _listed_cases(path: Path, dataset: object, place: FileLocator) -> dict[str, Any]:
    """The cases of the key "dataset": {ID: {"images": [a file per channel], "label": file}}."""
    if not isinstance(dataset, dict) or not all(isinstance(entry, dict) for entry in dataset.values()):
        raise ValueError(f'{path}: "dataset" must be {{ID: {{"images": [...], "label": ...}}}}.')
    entries, first = [], ""
    for case_id, entry in dataset.items():
        images, label = entry.get("images"), entry.get("label")
        where = f"{path}: dataset[{case_id}]"
        if not isinstance(images, list):
            raise ValueError(f'{where}: "images" must be a list of files, one per channel, not {images!r}.')
        first = first or case_id
        expected = len(dataset[first]["images"])
        if len(images) != expected:
            raise ValueError(
                f"{where}: names {len(images)} image files, but the first case, {first}, {expected}; "
                "name one per channel."
            )
        if not place.url:  # as in nnU-Net; a remote list must not read this environment
            images = [os.path.expandvars(name) if isinstance(name, str) else name for name in images]
            label = os.path.expandvars(label) if isinstance(label, str) else label
        entries.append(case_from_entry({"id": case_id, "image": images, "label": label}, place, where))
    return join_entries(entries, str(path))


def _folder_cases(path: Path, place: FileLocator, kind: str, channels: tuple[str, ...]) -> tuple[Case, ...]:
    """The cases of imagesTr and labelsTr, whose files end in `kind`."""
    if place.url:
        raise ValueError(
            f'{path}: lists no files, which a remote source must; add "dataset" with every case, or copy it.'
        )
    if ending(Path(f"a{kind}")) != kind.lower():
        raise ValueError(
            f'{path}: "file_ending" is "{kind}", but the kinds read are {", ".join(ENDINGS)}; convert them.'
        )
    images, labels = folders = (place.folder / "imagesTr", place.folder / "labelsTr")
    for each in folders:
        if not each.is_dir():
            raise ValueError(f"{place.folder}: has no {each.name}/, which nnU-Net's layout wants; add or rename it.")
    cases = _channel_files(images, kind, path)
    per_file = read_file_header(next(iter(next(iter(cases.values())).values())))[1]
    image_of = {
        case_id: _joined(images, case_id, files, kind, channels, per_file, path) for case_id, files in cases.items()
    }
    targets = {case_id: labels / f"{case_id}{kind}" for case_id in cases}
    _check_label_maps(labels, targets, kind)
    return tuple(Case(id=case_id, image=image, label=targets[case_id]) for case_id, image in image_of.items())


def with_channel_files(path: Path, content: dict[str, Any], cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases of "training" with the files that are meant, where these have nnU-Net's channel numbers.

    nnU-Net v1 lists `NAME.nii.gz` for the files NAME_0000, NAME_0001, ..., and a list that is left over in v2 may name
    the first of these. Any other file is taken as it is listed. Raises ValueError for a channel that is missing.
    """
    channels = channel_names(content, path) or ()
    numbered = {folder: _numbered_files(folder) for folder in {case.image[0].parent for case in cases}}
    per_file = None
    result = []
    for case in cases:
        listed, kind = case.image[0], ending(case.image[0])
        name, files = listed.name.removesuffix(kind), numbered[listed.parent]
        match = _NAME.fullmatch(name) if "file_ending" in content else None
        base = match[1] if match else name
        meant = files.get((base, kind)) if len(case.image) == 1 else None
        if meant and (match or not listed.exists()):
            per_file = per_file or read_file_header(next(iter(meant.values())))[1]
            image = _joined(listed.parent, base, meant, kind, channels or ("image",), per_file, path)
            case = replace(case, id=base if case.id == name else case.id, image=image)
        result.append(case)
    used = {path for case in result for path in case.image}
    files_of = [next(iter(files.values())) for each in numbered.values() for files in each.values()]
    unused = sorted(path.name for path in files_of if path not in used)
    if "file_ending" in content and unused:
        what = (
            f'"training" leaves out {len(unused)} cases of imagesTr, which nnU-Net would train on: {first_few(unused)}'
        )
        log.warning("%s: %s; list them, or take the list out", path, what)
    return tuple(result)


def _numbered_files(folder: Path) -> dict[tuple[str, str], dict[int, Path]]:
    """The files NAME_0000, NAME_0001, ... of a folder, by NAME and ending, each by its number."""
    files: dict[tuple[str, str], dict[int, Path]] = {}
    for name, file in named_files(folder) if folder.is_dir() else []:
        match = _NAME.fullmatch(name)
        if match:
            files.setdefault((match[1], ending(file)), {})[int(match[2])] = file
    return files


def _joined(
    images: Path,
    case_id: str,
    files: dict[int, Path],
    kind: str,
    channels: tuple[str, ...],
    per_file: int,
    path: Path,
) -> tuple[Path, ...]:
    """The files of a case, each with `per_file` channels, in order. Raises ValueError for too many and too few."""
    if len(channels) % per_file:
        raise ValueError(
            f"{next(iter(files.values()))}: holds {per_file} channels, but {path} names {len(channels)} "
            f"({', '.join(channels)}); correct the names."
        )
    count = len(channels) // per_file
    _check_channels(images, case_id, files, count, kind, channels)
    return tuple(files[index] for index in range(count))


def _channel_files(images: Path, kind: str, path: Path) -> dict[str, dict[int, Path]]:
    """The files of each case by channel number, cases by name.

    If no file has the number that nnU-Net requires, each file is a case. Raises ValueError if only some have one.
    """
    files = [file for file in sorted(images.iterdir()) if file.is_file() and not file.name.startswith(".")]
    names = {file: file.name.removesuffix(kind) for file in files if file.name.endswith(kind)}
    numbered = {file: match for file, name in names.items() if (match := _NAME.fullmatch(name))}
    cases: dict[str, dict[int, Path]] = {}
    for file, name in names.items():
        if numbered and file not in numbered:
            raise ValueError(
                f"{file}: has no channel number, as the other files have; rename it to {name}_0000{kind}, "
                "or move it away."
            )
        case_id, channel = (numbered[file][1], int(numbered[file][2])) if numbered else (name, 0)
        cases.setdefault(case_id, {})[channel] = file
    if not cases:
        kinds = sorted({ending(file) or file.suffix for file in files})
        raise ValueError(
            f"{images}: holds no file that ends in {kind}, the file_ending of {path}"
            f"{f'; what it holds ends in {first_few(kinds)}' if kinds else ''}; correct file_ending or add the files."
        )
    return cases


def _check_channels(
    images: Path, case_id: str, files: dict[int, Path], count: int, kind: str, channels: tuple[str, ...]
) -> None:
    names = f"{len(channels)} ({', '.join(channels)})"
    for index in range(count):
        if index not in files:
            raise ValueError(
                f"{images / f'{case_id}_{index:04d}{kind}'}: does not exist, but case {case_id} needs all channels, "
                f"{names}; restore the file or move the case away."
            )
    extra = next((file for index, file in sorted(files.items()) if index >= count), None)
    if extra is not None:
        raise ValueError(
            f"{extra}: is a channel more than dataset.json names, {names}; "
            "add its name to channel_names or move the file away."
        )


def _check_label_maps(labels: Path, targets: dict[str, Path], kind: str) -> None:
    missing = [str(target) for target in targets.values() if not target.is_file()]
    if missing:
        if labels.is_dir():
            refuse_unread(labels, [Path(name).name for name in missing])
        raise ValueError(
            f"{missing[0]}: does not exist{f', nor do {len(missing) - 1} more' if len(missing) > 1 else ''}; "
            "add the label map of every case of imagesTr/, under the case's name without a channel number."
        )
    present = {file.name for file in labels.iterdir() if file.name.endswith(kind) and not file.name.startswith(".")}
    without = sorted(present - {target.name for target in targets.values()})
    if without:
        raise ValueError(
            f"{labels}: {len(without)} label maps have no image in imagesTr/: {first_few(without)}; "
            "add the images or move the label maps away."
        )


def _check_count(path: Path, stated: object, count: int) -> None:
    if stated is not None and stated != count:
        raise ValueError(
            f'{path}: "numTraining" is {stated!r}, but {count} training cases were found; '
            "restore those that are missing, or correct the number."
        )


def file_ending_of(images: Path) -> str | None:
    """The file_ending of the nnU-Net data set that an image folder (imagesTs, imagesTr) belongs to; None if to none."""
    path = images.parent / "dataset.json"
    if not images.name.startswith("images") or not path.is_file():
        return None
    try:
        content = load_json(path)
    except ValueError:
        return None
    return _file_ending(content) if isinstance(content, dict) and "file_ending" in content else None


def _file_ending(content: dict[str, Any]) -> str:
    """The file_ending with its dot, which is often left out."""
    return f".{str(content['file_ending']).strip().lstrip('.')}"
