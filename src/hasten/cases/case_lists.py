"""JSON and CSV lists of cases, and the Decathlon's dataset.json. Relative names start at the folder of the list."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.cases.entries import Listing, case_from_entry, join_entries, load_json, read_text
from hasten.cases.image_folders import declared_labels, refuse_list
from hasten.cases.labels import parse_labels
from hasten.cases.locate import FileLocator
from hasten.cases.nnunet import declared_listing, is_nnunet, read_nnunet


def read_json_list(path: Path, place: FileLocator) -> Listing:
    """`[{"id", "image", "label", "sha256", "split"}, ...]` or `{"labels": {...}, "cases": [...]}`, or a dataset.json.

    Raises ValueError.
    """
    content = load_json(path)
    if isinstance(content, dict) and ("training" in content or is_nnunet(content)):
        return read_decathlon(path, place)
    declared = content if isinstance(content, dict) else {"cases": content}
    entries = declared.get("cases")
    if not isinstance(entries, list):
        raise ValueError(
            f'{path}: must be a list of {{"image": ..., "label": ...}}, an object with such a list in "cases", '
            'or a Decathlon dataset.json with "training".'
        )
    listed = (case_from_entry(e, place, f"{path}: cases[{i}]") for i, e in enumerate(entries))
    labels = parse_labels(declared["labels"], str(path)) if "labels" in declared else declared_labels(place.folder)
    name = str(declared.get("name") or path.stem)
    return Listing(name=name, source=path, labels=labels, **join_entries(listed))


def read_csv_list(path: Path, place: FileLocator) -> Listing:
    """A CSV table with the columns image, label and optionally id; `;` parts the files of several channels.

    The columns image_sha256 and label_sha256 may declare the content of remote files; `split` says train, val or test.
    Raises ValueError.
    """
    reader = csv.reader(read_text(path).splitlines())
    columns = [name.strip().lower() for name in next(reader, [])]
    repeated = [name for name, count in Counter(columns).items() if name and count > 1]
    if repeated:
        raise ValueError(f"{path}: has several columns {repeated[0]!r}; rename or remove all but one.")
    for column in ("image", "label"):
        if column not in columns:
            raise ValueError(
                f'{path}: has no column "{column}" (its first line names {columns}); '
                "name the columns image,label[,id] in the first line."
            )
    entries = []
    for fields in _rows(reader, path):
        if not any(field.strip() for field in fields):
            continue
        where = f"{path}: line {reader.line_num}"
        if len(fields) != len(columns):
            raise ValueError(
                f"{where}: has {len(fields)} fields, but the first line names {len(columns)} columns; "
                "correct the line, with quotes around each field that holds a comma."
            )
        row = dict(zip(columns, (field.strip() for field in fields), strict=True))
        names = [name.strip() for name in row["image"].split(";")]
        hashes = [each.strip() for each in row.get("image_sha256", "").split(";")]
        sha256 = {"image": hashes if any(hashes) else None, "label": row.get("label_sha256")}
        entry = {
            "id": row.get("id"),
            "image": names,
            "label": row["label"],
            "sha256": sha256,
            "split": row.get("split"),
        }
        entries.append(case_from_entry(entry, place, where))
    return Listing(name=path.stem, source=path, labels=declared_labels(place.folder), **join_entries(entries))


def read_decathlon(path: Path, place: FileLocator) -> Listing:
    """The cases of a dataset.json, whose names start at `place`, those of "validation" held out. Raises ValueError.

    A `test` list is ignored.

    A dataset.json of nnU-Net v2, which lists no cases, is read by `hasten.cases.nnunet`.
    """
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f'{path}: must be a JSON object with "training".')
    if is_nnunet(content):
        return read_nnunet(path, content, place)
    if "training" not in content:
        refuse_list(path)
    entries = []
    for key in ("training", "validation"):
        listed = content.get(key, [])
        if not isinstance(listed, list):
            raise ValueError(f'{path}: "{key}" must be a list of {{"image": ..., "label": ...}}.')
        part = [case_from_entry(entry, place, f"{path}: {key}[{i}]") for i, entry in enumerate(listed)]
        entries += part if key == "training" else [entry._replace(part="val") for entry in part]
    return declared_listing(path, content, place, **join_entries(entries))


def _rows(reader: Any, path: Path) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise ValueError(f"{path}: is not valid CSV near line {reader.line_num} ({error}); correct it there.") from None
