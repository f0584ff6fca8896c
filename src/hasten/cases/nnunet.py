"""nnU-Net v2 data sets as they are: nnUNet_raw/DatasetNNN_Name with dataset.json, imagesTr/ID_0000 and labelsTr/ID."""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.cases.entries import Listing, load_json
from hasten.cases.formats import ENDINGS, ending, named_files, read_file_header
from hasten.cases.image_folders import declared_labels, pair_files
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
    return not listed and "file_ending" in content


def read_nnunet(path: Path, content: dict[str, Any], place: FileLocator) -> Listing:
    """The training cases of a dataset.json for which `is_nnunet` holds; imagesTs is left out.

    Labels with several values are regions, and the label "ignore" is no class. Raises ValueError for a case that lacks
    a channel or its label map, for another number of cases than numTraining, and for what else nnU-Net would refuse,
    naming the file.
    """
    channels = channel_names(content, path)
    if channels is None:
        raise ValueError(f'{path}: has no "channel_names"; add them, as in {{"0": "CT"}}.')
    if "dataset" in content:
        raise ValueError(
            f'{path}: lists its cases under "dataset"; write them as a list "training", of '
            '{"image": [...], "label": ...} each.'
        )
    if "labels" not in content:
        raise ValueError(f'{path}: has no "labels"; add them, as in {{"background": 0, "spleen": 1}}.')
    cases = _folder_cases(path, place, _file_ending(content), channels)
    stated = as_number(content.get("numTraining"))
    if stated not in (None, len(cases)):
        raise ValueError(
            f'{path}: "numTraining" is {stated!r}, but {len(cases)} training cases were found; restore those that are '
            "missing, or correct the number."
        )
    return declared_listing(path, content, place, cases=cases)


def declared_listing(path: Path, content: dict[str, Any], place: FileLocator, **cases: Any) -> Listing:
    """The listing of a dataset.json, whose labels may be those of a labels.json beside it, or undeclared.

    cases: its fields that the cases give. Raises ValueError.
    """
    channels = channel_names(content, path)
    return Listing(
        name=str(content.get("name") or place.folder.name),
        source=path,
        channels=channels,
        modality=channels[0] if channels else "",
        **declared_classes(content, path, place.folder),
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


def declared_classes(content: object, path: Path, folder: Path) -> dict[str, Any]:
    """The fields labels, ignore, regions and region_values of a Listing that a dataset.json gives.

    Labels that it does not declare are those of a labels.json in `folder`, or None. Where no label has several
    values there are no regions. Else every label but the background is one, in the order of the file, painted with its
    entry of `regions_class_order`; a value is named by the region that is that value alone, or value_N. Raises
    ValueError.
    """
    if not isinstance(content, dict) or "labels" not in content:
        return {"labels": declared_labels(folder)}
    raw, ignore = split_ignore(content["labels"], str(path))
    if not isinstance(raw, dict) or not any(isinstance(entry, list) for entry in raw.values()):
        return {"labels": parse_labels(raw, str(path)), "ignore": ignore}
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
        return {"labels": labels, "ignore": ignore}
    values_of = _region_values(content.get("regions_class_order"), regions, path)
    return {"labels": labels, "ignore": ignore, "regions": regions, "region_values": values_of}


def _region_values(order: object, regions: dict[str, tuple[int, ...]], path: Path) -> dict[str, int]:
    """The label value of each region, later ones over earlier ones; {} if the file has no "regions_class_order"."""
    if order is None:
        return {}
    values_of = [as_number(value) for value in order] if isinstance(order, list) else []
    painted = dict(zip(regions, values_of, strict=False))
    if len(values_of) != len(regions) or any(painted[name] not in values for name, values in regions.items()):
        example = [values[0] for values in regions.values()]
        raise ValueError(
            f'{path}: "regions_class_order" is {order!r}, but the {len(regions)} regions ({", ".join(regions)}) need '
            f"one of their own label values each, in that order, as in {example}."
        )
    return {name: value for name, value in painted.items() if isinstance(value, int)}


def _folder_cases(path: Path, place: FileLocator, kind: str, channels: tuple[str, ...]) -> tuple[Case, ...]:
    """The cases of imagesTr and labelsTr, whose files end in `kind`."""
    if place.url:
        raise ValueError(
            f'{path}: lists no files, which a remote source must; add a "training" list, or copy the data set here.'
        )
    if ending(f"a{kind}") != kind.lower():
        raise ValueError(
            f'{path}: "file_ending" is "{kind}", but the kinds read are {", ".join(ENDINGS)}; convert them.'
        )
    images, labels = folders = (place.folder / "imagesTr", place.folder / "labelsTr")
    for each in folders:
        if not each.is_dir():
            raise ValueError(f"{place.folder}: has no {each.name}/, which nnU-Net's layout wants; add or rename it.")
    cases = pair_files(images, labels)
    for case in cases:
        _check_channels(case, channels, read_file_header(cases[0].image[0])[1], path)
    return cases


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
            image = tuple(meant[number] for number in sorted(meant))
            _check_channels(replace(case, id=base, image=image), channels or ("image",), per_file, path)
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


def _check_channels(case: Case, channels: tuple[str, ...], per_file: int, path: Path) -> None:
    """Raise ValueError for other files than one for each channel that dataset.json names, or one for all of them."""
    kind = ending(case.image[0])
    count = len(channels) // per_file
    names, wanted = [file.name for file in case.image], [f"{case.id}_{index:04d}{kind}" for index in range(count)]
    if len(channels) % per_file or (names != wanted and not (count == 1 and names == [f"{case.id}{kind}"])):
        raise ValueError(
            f"{case.image[0]}: case {case.id} has {first_few(names)} of {per_file} channels each, but {path} names the "
            f"channels {', '.join(channels)}, which need {first_few(wanted) or 'other files'}; restore the files, or "
            "correct channel_names."
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
