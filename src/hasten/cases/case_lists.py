"""JSON and CSV lists of cases, and the dataset.json of other tools. Relative names start at the folder of the list."""

from __future__ import annotations

from pathlib import Path

from hasten.cases.entries import (
    PARTS,
    Entry,
    Listing,
    Part,
    case_from_entry,
    join_entries,
    load_json,
    log_unread,
    read_rows,
)
from hasten.cases.image_folders import declared_labels
from hasten.cases.locate import FileLocator
from hasten.cases.nnunet import declared_listing, is_nnunet, read_nnunet, with_channel_files


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
