"""Medical Segmentation Decathlon folders, and nnU-Net v2 folders, which have the same layout without a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.cases.labels import parse_labels
from hasten.cases.listing import Listing, case_from_entry, join_entries, load_json
from hasten.cases.pairs import pair_files
from hasten.cases.place import Place


def read_decathlon(path: Path, place: Place) -> Listing:
    """The cases of a dataset.json, whose names start at `place`; a `test` list is ignored. Raises ValueError."""
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f'{path}: must be a JSON object with "training" and "labels".')
    folder = place.folder
    if "training" in content:
        entries = content["training"]
        if not isinstance(entries, list):
            raise ValueError(f'{path}: "training" must be a list of {{"image": ..., "label": ...}}.')
        made = join_entries(case_from_entry(e, place, f"{path}: training[{i}]") for i, e in enumerate(entries))
    elif "file_ending" in content and (folder / "imagesTr").is_dir() and (folder / "labelsTr").is_dir():
        made = {"cases": pair_files(folder / "imagesTr", folder / "labelsTr")}
    else:
        raise ValueError(f'{path}: has no "training" list of {{"image": ..., "label": ...}}; add it.')
    if "labels" not in content:
        raise ValueError(f'{path}: has no "labels"; add them, as in {{"0": "background", "1": "spleen"}}.')
    channels = _channels(content, path)
    return Listing(
        name=str(content.get("name") or folder.name),
        source=path,
        labels=parse_labels(content["labels"], str(path)),
        channels=channels,
        modality=channels[0] if channels else "",
        **made,
    )


def _channels(content: dict[str, Any], path: Path) -> tuple[str, ...] | None:
    key = "channel_names" if "channel_names" in content else "modality"
    raw = content.get(key)
    if not raw:
        return None
    if isinstance(raw, str):
        return (raw,)
    if isinstance(raw, list):
        return tuple(str(name) for name in raw)
    if isinstance(raw, dict) and all(index.isdigit() for index in raw):
        return tuple(str(raw[index]) for index in sorted(raw, key=int))
    raise ValueError(f'{path}: "{key}" must map channel numbers to names, as in {{"0": "CT"}}, not {raw!r}.')
