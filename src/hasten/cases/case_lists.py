"""JSON and CSV lists of cases, and the Decathlon's dataset.json. Relative names start at the folder of the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.cases.entries import (
    PARTS,
    Listing,
    Part,
    case_from_entry,
    join_entries,
    load_json,
    log_unread,
    read_rows,
)
from hasten.cases.image_folders import declared_labels
from hasten.cases.labels import parse_labels
from hasten.cases.locate import FileLocator
from hasten.cases.nnunet import declared_listing, is_nnunet, read_nnunet, with_channel_files


def read_json_list(path: Path, place: FileLocator) -> Listing:
    """`[{"id", "image", "label", "sha256", "split", "fold"}, ...]` or `{"labels": {...}, "cases": [...]}`, or a
    dataset.json, also of MONAI's Auto3DSeg.

    Raises ValueError.
    """
    content = load_json(path)
    if isinstance(content, dict) and ("train" in _part_lists(content).values() or is_nnunet(content)):
        return read_decathlon(path, place)
    declared = content if isinstance(content, dict) else {"cases": content}
    entries = declared.get("cases")
    if not isinstance(entries, list):
        raise ValueError(
            f'{path}: must be a list of {{"image": ..., "label": ...}}, an object with such a list in "cases", '
            'or a Decathlon dataset.json with "training".'
        )
    beside = [key for key, part in _part_lists(declared).items() if part == "val"]
    if beside:
        raise ValueError(
            f'{path}: has "{beside[0]}" beside "cases"; call that list "training", or write "split": train, val or '
            "test into each of the cases."
        )
    _log_unread(entries, path)
    listed = (case_from_entry(e, place, f"{path}: cases[{i}]") for i, e in enumerate(entries))
    labels = parse_labels(declared["labels"], str(path)) if "labels" in declared else declared_labels(place.folder)
    name = str(declared.get("name") or path.stem)
    return Listing(name=name, source=path, labels=labels, **join_entries(listed, str(path)))


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


def read_decathlon(path: Path, place: FileLocator) -> Listing:
    """The cases of a dataset.json, whose names start at `place`, those of "validation" held out. Raises ValueError.

    Of cases to test, those with a label are kept apart. A dataset.json of nnU-Net v2, which lists no cases, is read by
    `hasten.cases.nnunet`.
    """
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f'{path}: must be a JSON object with "training".')
    if is_nnunet(content):
        return read_nnunet(path, content, place)
    lists = _part_lists(content)
    if "train" not in lists.values():
        raise ValueError(
            f'{path}: has no "training" list of {{"image": ..., "label": ...}} (Decathlon), and no "file_ending" with '
            "imagesTr/ and labelsTr/ (nnU-Net); add either."
        )
    entries = []
    for key, part in lists.items():
        listed = content[key]
        if part == "test":
            listed = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        elif not isinstance(listed, list):
            raise ValueError(f'{path}: "{key}" must be a list of {{"image": ..., "label": ...}}.')
        _log_unread(listed, path)
        for number, item in enumerate(listed):
            entry = case_from_entry(
                item if part != "test" else {**item, "split": "test"}, place, f"{path}: {key}[{number}]"
            )
            if entry is not None:
                entries.append(entry if part == "train" or entry.part == "test" else entry._replace(part=part))
    if not place.url:
        used = [entry for entry in entries if entry.part != "test"]
        cases = with_channel_files(path, content, [entry.case for entry in used])
        tested = [entry for entry in entries if entry.part == "test"]
        entries = [entry._replace(case=case) for entry, case in zip(used, cases, strict=True)] + tested
    return declared_listing(path, content, place, **join_entries(entries, str(path)))


def _log_unread(entries: list[Any], path: Path) -> None:
    names = dict.fromkeys(name for entry in entries if isinstance(entry, dict) for name in entry)
    log_unread(names, ("id", "image", "label", "split", "fold", "sha256"), str(path))


def _part_lists(content: dict[str, Any]) -> dict[str, Part]:
    """The keys of the lists of cases, such as "training", and which part each is."""
    return {key: PARTS[key.lower()] for key in content if key.lower() in PARTS}
