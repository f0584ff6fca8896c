"""Loads a source that a user names as a validated set of cases. Relative names in a list start at its folder."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hasten.cases.dicom import is_series
from hasten.cases.entries import (
    PARTS,
    Entry,
    Listing,
    Part,
    case_from_entry,
    join_entries,
    load_json,
    log_unread,
    pause_garbage_collection,
    read_rows,
)
from hasten.cases.formats import check_regular, is_picture, read_file_header
from hasten.cases.image_folders import declared_labels, read_pairs
from hasten.cases.labels import find_labels, parse_labels
from hasten.cases.locate import FileLocator
from hasten.cases.nnunet import declared_listing, is_nnunet, read_nnunet, with_channel_files
from hasten.cases.remote import Downloader, companions, fetch_all, mirror
from hasten.cases.types import CaseSet, Declared, is_flat
from hasten.config.patterns import as_lists, first_few
from hasten.config.url import is_url, shown
from hasten.files import expanded

log = logging.getLogger(__name__)


def load_case_set(source: str | Path, spatial_dims: int | None = None, *, remote_dir: Path | None = None) -> CaseSet:
    """The cases, classes and channels of a source: `look_into` what `find_listing` finds. Raises ValueError."""
    return look_into(find_listing(source, remote_dir=remote_dir), spatial_dims)


def find_listing(source: str | Path, *, remote_dir: Path | None = None) -> Listing:
    """The listing of a source, with all files local; none of them is opened.

    A source is a Decathlon folder or its dataset.json, a folder with images/ and labels/ (or imagesTr/ and labelsTr/),
    or a JSON or CSV list; or a URL of any of them. Remote files are first copied below `remote_dir`, once.

    Raises ValueError, naming the file and the remedy.
    """
    if not str(source):
        raise ValueError("data.source is empty: name a data set folder, its dataset.json, or a JSON or CSV list.")
    source = str(source)
    downloader = Downloader(expanded(remote_dir).absolute()) if remote_dir is not None else None
    if is_url(source):
        if downloader is None:
            raise ValueError(f"{shown(source)}: is remote; pass remote_dir=, the folder for the local copy.")
        path, place = mirror(source, downloader)
    else:
        path = expanded(source).absolute()
        folder = path if path.is_dir() else path.parent
        place = FileLocator(folder=folder, remote_dir=downloader.folder if downloader else None)
    listing = _read_listing(path, place)
    if listing.remote:
        assert downloader is not None
        fetch_all(listing.remote, downloader)
        fetch_all(companions(listing.remote), downloader)
    _check_cases(listing)
    return listing


def look_into(listing: Listing, spatial_dims: int | None = None) -> CaseSet:
    """The listed cases with the facts that only their files contain: undeclared labels and channels, 2-D or 3-D.

    `spatial_dims` (2 or 3) is checked against the first image, which decides it if None. Labels that are declared
    nowhere are read from all label maps. Raises ValueError, naming the file and the remedy.
    """
    headers = [read_file_header(p) for p in listing.cases[0].image]
    dims = _checked_dims(listing, headers[0][0], spatial_dims)
    labels = listing.labels
    if labels is None:
        labels = find_labels((case.label for case in listing.cases if case.label), str(listing.source), listing.ignore)
    channels = _checked_channels(listing, sum(num_channels for _, num_channels, _ in headers))
    return as_case_set(listing, labels=labels, channels=channels, spatial_dims=dims)


def as_case_set(listing: Listing, *, labels: dict[int, str], channels: tuple[str, ...], spatial_dims: int) -> CaseSet:
    """The listed cases with these known facts."""
    shared: dict[str, Any] = {each.name: getattr(listing, each.name) for each in fields(Declared)}
    return CaseSet(labels=labels, channels=channels, spatial_dims=spatial_dims, **shared)


def with_classes(listing: Listing, classes: Sequence[str] | Mapping[str, int] | None) -> Listing:
    """The listing with the class names of the configuration, instead of its own; None changes nothing.

    classes: the names of the values 0, 1, ..., or name to value. Raises ValueError.
    """
    return listing if classes is None else replace(listing, labels=parse_labels(as_lists(classes), "data.classes"))


def with_ignore(listing: Listing, value: int | None) -> Listing:
    """The listing with the label value of voxels that are not annotated, from the configuration; None changes nothing.

    Raises ValueError where that is a class, or the source declares another.
    """
    if value is None:
        return listing
    name = (listing.labels or {}).get(value)
    if name is not None or listing.ignore not in (None, value):
        declared = f'the class "{name}"' if name is not None else f'the label "ignore" as {listing.ignore}'
        raise ValueError(
            f"data.ignore={value}: {listing.source} declares {declared}; leave data.ignore out, or correct that."
        )
    return replace(listing, ignore=value)


@pause_garbage_collection()
def _read_listing(path: Path, place: FileLocator) -> Listing:
    if path.is_dir():
        listed = path / "dataset.json"
        return read_json_list(listed, place) if listed.is_file() else read_pairs(path)
    if not path.exists():
        raise ValueError(f"{path}: does not exist; name a data set folder, its dataset.json, or a JSON or CSV list.")
    check_regular(path, path)
    match path.suffix.lower():
        case ".json":
            return read_json_list(path, place)
        case ".csv":
            return read_csv_list(path, place)
    raise ValueError(
        f"{path}: is no source of cases; name a data set folder (unpack archives), its dataset.json, or a JSON or CSV "
        "list."
    )


def read_csv_list(path: Path, place: FileLocator) -> Listing:
    """A CSV table with the columns image, label and optionally id; `;` parts the files of several channels.

    The columns image_sha256 and label_sha256 may declare the content of remote files; `split` says train, val or test,
    and `fold` in which fold a case is validated on. Raises ValueError.
    """
    entries = []
    for where, row in read_rows(path, ("image", "label"), ("id", "split", "fold", "image_sha256", "label_sha256")):
        names = [name.strip() for name in row["image"].split(";")]
        hashes = [each.strip() for each in row.get("image_sha256", "").split(";")]
        sha256 = {"image": hashes if any(hashes) else None, "label": row.get("label_sha256")}
        entries.append(case_from_entry({**row, "image": names, "sha256": sha256}, place, where))
    listed = join_entries(entries, str(path))
    return Listing(name=path.stem, source=path, labels=declared_labels(place.folder), **listed)


def read_json_list(path: Path, place: FileLocator) -> Listing:
    """`[{"id", "image", "label", "sha256", "split", "fold"}, ...]`, `{"labels": {...}, "cases": [...]}`, or a
    dataset.json of the Decathlon, of MONAI's Auto3DSeg or of nnU-Net. Names start at `place`.

    The cases of a list "validation" are held out; of those to test, the ones with a label are kept apart. Raises
    ValueError.
    """
    content = load_json(path)
    content = {"cases": content} if isinstance(content, list) else content
    if is_nnunet(content):
        return read_nnunet(path, content, place)
    lists: dict[str, Part | None] = {}
    if isinstance(content, dict):
        lists = {key: PARTS.get(key.lower()) for key in content if key.lower() in {"cases", *PARTS}}
    parts = set(lists.values())
    if ("cases" in lists) == ("train" in parts) or {None, "val"} <= parts:
        raise ValueError(
            f'{path}: must have one list of {{"image": ..., "label": ...}}, "training" (with "validation", "test"), '
            'or "cases" (with "split": train, val or test in each), or "file_ending" with imagesTr/ and labelsTr/ '
            "(nnU-Net)."
        )
    entries: list[Entry] = []
    for key, part in lists.items():
        listed = content[key]
        if part == "test":
            listed = [
                {**each, "split": "test"}
                for each in (listed if isinstance(listed, list) else [])
                if isinstance(each, dict)
            ]
        elif not isinstance(listed, list):
            raise ValueError(f'{path}: "{key}" must be a list of {{"image": ..., "label": ...}}.')
        names = dict.fromkeys(name for entry in listed if isinstance(entry, dict) for name in entry)
        log_unread(names, ("id", "image", "label", "split", "fold", "sha256"), str(path))
        for number, item in enumerate(listed):
            entry = case_from_entry(item, place, f"{path}: {key}[{number}]")
            if entry is not None:
                entries.append(entry._replace(part=part) if part == "val" and entry.part != "test" else entry)
    if "cases" in lists:
        return declared_listing(path, {"name": path.stem, **content}, place, **join_entries(entries, str(path)))
    if not place.url:
        used = [entry for entry in entries if entry.part != "test"]
        cases = with_channel_files(path, content, [entry.case for entry in used])
        tested = [entry for entry in entries if entry.part == "test"]
        entries = [entry._replace(case=case) for entry, case in zip(used, cases, strict=True)] + tested
    return declared_listing(path, content, place, **join_entries(entries, str(path)))


@pause_garbage_collection()
def _check_cases(listing: Listing) -> None:
    if not listing.cases:
        raise ValueError(f"{listing.source}: lists 0 cases; add images with their label maps.")
    repeated = [case_id for case_id, count in Counter(case.id for case in listing.cases).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{listing.source}: {len(repeated)} case ids occur more than once: {first_few(repeated)}; "
            'remove the repeats, or give each case an "id" of its own.'
        )
    images = [path for case in listing.cases for path in case.image]
    labels = [case.label for case in listing.cases if case.label]
    for kind, files in (("image", images), ("label", labels)):
        # Not by pathlib, nor a set for each case: this runs for every file at every start.
        missing = [p for p in files if not (os.path.isfile(p) or is_series(p))]  # noqa: PTH113
        if missing:
            raise ValueError(
                f"{listing.source}: {len(missing)} {kind} files do not exist: {first_few(missing)}; "
                "restore them or remove their cases from the source."
            )
        shared = [name for name, count in Counter(map(str, files)).items() if count > 1]
        if shared:
            log.warning(
                "%s: %d %s files are named more than once: %s; check whether each case has its own",
                listing.source,
                len(shared),
                kind,
                first_few(shared),
            )
    same = [case.label for case in listing.cases if case.label in case.image]
    if same:
        raise ValueError(
            f"{listing.source}: {len(same)} cases name one file as image and as label: {first_few(same)}; "
            "correct the list."
        )


def _checked_dims(listing: Listing, first_shape: tuple[int, int, int], declared: int | None) -> int:
    first = listing.cases[0].image[0]
    dims = 2 if is_flat(first_shape) else 3
    if declared is not None and declared != dims:
        raise ValueError(
            f"{first}: is a {dims}-D image of shape {first_shape} (D, H, W), but "
            f"data.spatial_dims is {declared}; set data.spatial_dims to {dims}, or name another source."
        )
    files = (p for case in listing.cases for p in case.image)
    if dims == 3:
        other, kind = next((p for p in files if is_picture(p)), None), "2-D picture"
    else:
        other = next((p for p in files if not is_picture(p) and not is_flat(read_file_header(p)[0])), None)
        kind = "3-D image"
    if other is not None:
        raise ValueError(
            f"{other}: is a {kind}, but the first case, {first.name}, is {dims}-D; "
            "keep 2-D and 3-D cases in separate sources."
        )
    return dims


def unnamed_channels(count: int) -> tuple[str, ...]:
    """Names of the channels of a source that names none."""
    return ("image",) if count == 1 else tuple(f"image_{index}" for index in range(count))


def _checked_channels(listing: Listing, num_channels: int) -> tuple[str, ...]:
    if listing.channels is None:
        return unnamed_channels(num_channels)
    if len(listing.channels) != num_channels:
        raise ValueError(
            f"{listing.cases[0].image[0]}: the first case has {num_channels} channels, but {listing.source} names "
            f"{len(listing.channels)}: {', '.join(listing.channels)}; correct the list of channels or files."
        )
    return listing.channels
